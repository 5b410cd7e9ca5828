"""Answers: what an HTTP answer means.

Pure. An answer is a status and bytes; this file turns it into the value a call promised or into one of Cloche's errors.
It does not know which HTTP library read the bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, JsonValue, ValidationError

from cloche.errors import (
    ClocheError,
    ConnectionFailed,
    ErrorBody,
    GuestFault,
    InvalidRequest,
    Unauthenticated,
    error_from_body,
)
from cloche.models import Event

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

NOT_CLOCHE_HINT = "check CLOCHE_URL; a proxy in between may also have answered"


@dataclass(frozen=True, slots=True)
class Answer:
    """One complete HTTP answer. ``key_file``: where the key of its request was found."""

    status: int
    body: bytes
    request_id: str | None = None
    key_file: Path | None = None


def model_parser(model: type[M]) -> Callable[[bytes], M]:
    """A parser for ``model`` that passes over fields it does not know: a newer server may say more."""

    def parse(body: bytes) -> M:
        return model.model_validate_json(body, extra="ignore")

    return parse


def read_answer(answer: Answer, parse: Callable[[bytes], T]) -> T:
    """The value of a 2xx answer; any other answer is raised as the error it says.

    :raises ClocheError: the one named by the body; `ConnectionFailed` when the answer is not one of Cloche's.
    """
    if answer.status < HTTPStatus.OK or answer.status >= HTTPStatus.MULTIPLE_CHOICES:
        raise error_of(answer)
    try:
        return parse(answer.body)
    except ValidationError as error:
        raise ConnectionFailed(
            f"the server answered with something that is not of Cloche's protocol: {first_problem(error)}",
            hint=NOT_CLOCHE_HINT,
            details={"status": answer.status},
            request_id=answer.request_id,
        ) from error


def error_of(answer: Answer) -> ClocheError:
    """The error an answer outside 2xx stands for."""
    try:
        body = ErrorBody.model_validate_json(answer.body, extra="ignore")
    except ValidationError:
        return ConnectionFailed(
            f"HTTP {answer.status} from something that is not a Cloche server",
            hint=NOT_CLOCHE_HINT,
            details={"status": answer.status},
            request_id=answer.request_id,
        )
    error = error_from_body(body)
    if isinstance(error, Unauthenticated) and answer.key_file is not None:
        error.hint = (
            f"the key is from {answer.key_file}, which is another server's then:"
            " set CLOCHE_DATA_DIR to this server's, or CLOCHE_API_KEY"
        )
    return error


def data_of(event: Event, model: type[M]) -> M:
    """The data of an event, as ``model``.

    :raises GuestFault: it is something else.
    """
    try:
        return model.model_validate(event.data, extra="ignore")
    except ValidationError as error:
        raise GuestFault(f"the data of a {event.type!r} event makes no sense: {first_problem(error)}") from error


def built(model: type[M], **fields: object) -> M:
    """``model`` with the fields that are not None, so that the server's own defaults count for the others.

    :raises InvalidRequest: a value is of the wrong type or out of range, in the form the server would use.
    """
    try:
        return model.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        problems: list[JsonValue] = [{"field": field, "problem": problem} for field, problem in problems_of(error)]
        raise InvalidRequest(first_problem(error), details={"errors": problems}) from error


def problems_of(error: ValidationError) -> list[tuple[str, str]]:
    """``(field, problem)`` of every mistake, without the input: it may be secret or huge."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [(".".join(str(part) for part in entry["loc"]), entry["msg"]) for entry in found]


def first_problem(error: ValidationError) -> str:
    """The first mistake as one line."""
    field, problem = problems_of(error)[0]
    return f"{field}: {problem}" if field else problem
