"""What answers mean."""

import pytest

from cloche import InvalidRequest, NotFound
from cloche._answers import Answer, built, model_parser, read_answer
from cloche.errors import ERRORS, ClocheError, ConnectionFailed, ErrorBody
from cloche.models import Health, SandboxCreate

parse = model_parser(Health)


def test_a_good_answer_is_its_model() -> None:
    assert read_answer(Answer(200, b'{"status": "ok"}'), parse) == Health(status="ok")


def test_fields_of_a_newer_server_are_passed_over() -> None:
    assert read_answer(Answer(200, b'{"status": "ok", "new": 1}'), parse) == Health(status="ok")


@pytest.mark.parametrize("code", sorted(ERRORS))
def test_every_code_becomes_its_class(code: str) -> None:
    body = ErrorBody(code=code, message="m", hint="h", details={"a": 1}, request_id="r")
    with pytest.raises(ERRORS[code]) as caught:
        read_answer(Answer(ERRORS[code].status, body.model_dump_json().encode()), parse)
    assert (caught.value.message, caught.value.hint, caught.value.request_id) == ("m", "h", "r")


def test_a_code_of_a_newer_server_is_a_plain_error() -> None:
    with pytest.raises(ClocheError) as caught:
        read_answer(Answer(418, b'{"code": "teapot", "message": "m", "more": true}'), parse)
    assert type(caught.value) is ClocheError


@pytest.mark.parametrize(
    "answer",
    [Answer(502, b"<html>"), Answer(301, b""), Answer(200, b"<html>"), Answer(200, b"{}"), Answer(500, b"\xff")],
)
def test_what_is_not_of_the_protocol_is_said_to_be_so(answer: Answer) -> None:
    with pytest.raises(ConnectionFailed, match="not") as caught:
        read_answer(answer, parse)
    assert caught.value.details["status"] == answer.status


def test_an_unset_field_is_left_to_the_server() -> None:
    assert built(SandboxCreate, image=None, name="a").model_dump(exclude_unset=True) == {"name": "a"}


def test_a_bad_value_is_an_invalid_request_without_the_value() -> None:
    with pytest.raises(InvalidRequest) as caught:
        built(SandboxCreate, env={"A": "secret\0"})
    assert "secret" not in str(caught.value) + str(caught.value.details)
    assert caught.value.details["errors"]


def test_not_found_is_a_request_error() -> None:
    assert issubclass(NotFound, ERRORS["invalid_request"].__bases__[0])
