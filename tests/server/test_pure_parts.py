"""Hosts, origins, keys, queries, bodies, paths: text in, decisions out."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.errors import Forbidden, InvalidRequest, Unauthenticated
from cloche.models import Role, SandboxCreate, SandboxState
from cloche_server.auth import Principal, bearer_secret, hash_secret, new_secret, require_role
from cloche_server.http._bodies import parse_body, refuse_body
from cloche_server.http._sse import EventTail
from cloche_server.origin import host_allowed, known_names, origin_allowed
from cloche_server.routes import ROUTES
from cloche_server.routing import FromCursor, ListSandboxes, NoQuery, RouteIndex, WaitByDefault, parse_query
from cloche_server.state import PageToken

NAMES = known_names("127.0.0.1", ["cloche.example"])


@pytest.mark.parametrize(
    "host",
    ["localhost", "127.0.0.1:8720", "LOCALHOST:1", "[::1]", "[::1]:8720", "cloche.example", "cloche.example:443"],
)
def test_a_host_this_server_is_known_by_is_allowed(host: str) -> None:
    assert host_allowed(host, NAMES)


@pytest.mark.parametrize(
    "host",
    [
        *(
            "",
            "evil.example",
            "localhost.",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "localhost@evil.example",
        ),
        *("localhost,evil.example", "localhost:80:80", "localhost:x", "[::1", "[::1]x", "0.0.0.0", "127.0.0.2", "::1"),
    ],
)
def test_any_other_host_is_refused(host: str) -> None:
    """DNS rebinding: a page that points its own name at 127.0.0.1 still says its own name."""
    assert not host_allowed(host, NAMES)


def test_a_wildcard_address_is_nobodys_name() -> None:
    assert not host_allowed("0.0.0.0:8720", known_names("0.0.0.0", []))
    assert not host_allowed("[::]", known_names("::", []))


@pytest.mark.parametrize(
    ("origin", "allowed"),
    [
        *(("http://localhost:8720", True), ("HTTP://LOCALHOST:8720", True), ("https://ui.example", True)),
        *(("null", False), ("http://localhost", False), ("http://localhost:8721", False)),
        *(("https://localhost:8720", False), ("http://x.localhost:8720", False), ("https://ui.example.evil", False)),
    ],
)
def test_only_the_same_or_a_configured_origin_is_allowed(origin: str, allowed: bool) -> None:
    assert origin_allowed(origin, "http", "localhost:8720", ["https://ui.example"]) is allowed


@pytest.mark.parametrize("header", [None, "", "clk_x", "Basic clk_x", "Bearer", "Bearer x", "Bearer clk_" + "a" * 200])
def test_a_header_without_a_key_of_ours_is_no_authorization(header: str | None) -> None:
    with pytest.raises(Unauthenticated):
        bearer_secret(header)


def test_secrets_are_long_and_their_hashes_differ() -> None:
    first, second = new_secret(), new_secret()
    assert bearer_secret(f"bearer {first}") == first
    assert len(first) == 47
    assert hash_secret(first) != hash_secret(second)


def test_roles_are_ordered() -> None:
    require_role(Principal("k", "o", Role.ADMIN), Role.MEMBER)
    with pytest.raises(Forbidden):
        require_role(Principal("k", "o", Role.VIEWER), Role.MEMBER)


def test_query_values_are_typed() -> None:
    query = parse_query("limit=5&label=a=b&label=c/d=&state=running", ListSandboxes)
    assert isinstance(query, ListSandboxes)
    assert (query.limit, query.label, query.state) == (5, ["a=b", "c/d="], SandboxState.RUNNING)
    assert parse_query("", WaitByDefault).encode() == "wait_s=30.0"
    assert parse_query("cursor=a.1%262", FromCursor).encode() == "cursor=a.1%262"
    assert parse_query("", FromCursor).encode() == ""


@pytest.mark.parametrize(
    ("text", "field"),
    [
        *(("limit=0", "limit"), ("limit=x", "limit"), ("limit=", "limit"), ("limit=1&limit=2", "limit"), ("x=1", "x")),
        *(("label=noequals", "label.0"), ("state=x", "state"), ("name=%00", "name"), ("name=%ff", "query")),
        ("&".join(f"a{i}=1" for i in range(500)), "query"),
    ],
)
def test_a_bad_query_is_named(text: str, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_query(text, ListSandboxes)
    errors = caught.value.details["errors"]
    assert isinstance(errors, list)
    assert field in [error["field"] for error in errors]  # type: ignore[index,call-overload]


@pytest.mark.parametrize("text", ["wait_s=nan", "wait_s=inf", "wait_s=-1", "wait_s=61", "wait_s=1e400"])
def test_a_wait_is_a_number_within_bounds(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_query(text, WaitByDefault)


@given(st.text(max_size=200))
def test_any_query_gives_values_or_a_typed_error(text: str) -> None:
    for model in (ListSandboxes, WaitByDefault, NoQuery):
        with suppress(InvalidRequest):
            parse_query(text, model)


@pytest.mark.parametrize(
    "raw",
    [
        *(b"[]", b"null", b'"x"', b"{", b"{}x", b'{"a": 1}', b'{"image": "\xff"}', b'{"image": "\\ud800"}', b"\x00"),
        *(b'{"metadata": {"a": NaN}}', b'{"metadata": {"a": 1e999}}', b'{"metadata": {"a": [-Infinity]}}'),
        *(b'{"sudo": "yes"}', b'{"sudo": 1}', b'{"resources": {"cpus": "2"}}', b'{"resources": {"memory_mb": 512.5}}'),
        *(b'{"env": {"A=B": "1"}}', b'{"env": {"A": "\\u0000"}}', b'{"name": ""}', b'{"driver": "docker"}'),
        b'{"metadata": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_a_bad_body_is_a_typed_error(raw: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_body(raw, SandboxCreate)


def test_the_values_of_a_bad_body_are_not_repeated() -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_body(b'{"env": {"TOKEN": 12345678}, "secret": "hunter2"}', SandboxCreate)
    assert "12345678" not in str(caught.value.to_body())
    assert "hunter2" not in str(caught.value.to_body())


@given(st.binary(max_size=300))
def test_any_body_gives_a_model_or_a_typed_error(raw: bytes) -> None:
    with suppress(InvalidRequest):
        parse_body(raw, SandboxCreate)


def test_no_body_is_an_empty_object_and_calls_without_a_body_take_none() -> None:
    assert parse_body(b"", SandboxCreate) == SandboxCreate()
    refuse_body(b"")
    refuse_body(b" {} ")
    with pytest.raises(InvalidRequest):
        refuse_body(b'{"a": 1}')


def test_page_tokens_come_back_as_they_were() -> None:
    token = PageToken(1_764_000_000_000_000, "a1" * 10)
    assert PageToken.decode(token.encode()) == token


@given(st.text(max_size=100))
def test_any_other_page_token_is_a_typed_error(text: str) -> None:
    with suppress(InvalidRequest):
        PageToken.decode(text)


def test_paths_are_found_by_their_segments() -> None:
    index = RouteIndex(ROUTES)
    found = index.match("/v1/sandboxes/by-name/my.box")
    assert found is not None
    assert found.path == {"name": "my.box"}
    assert set(found.methods) == {"GET"}
    assert index.match("/v1/sandboxes/") is not None  # an empty id, which is a bad one
    assert index.match("/v1/nothing") is None
    assert index.match("//v1/health") is None


@pytest.mark.parametrize("text", ["..", "%2e%2e", "a%2fb", "%ff", "A" * 20, "a" * 19, "a" * 20 + "%0a", ""])
def test_text_that_can_be_no_id_is_marked(text: str) -> None:
    found = RouteIndex(ROUTES).match(f"/v1/sandboxes/{text}")
    assert found is not None
    assert found.bad == {"sandbox_id": text}


def test_event_borders_are_seen_across_parts() -> None:
    tail = EventTail()
    assert tail.between_events
    for part, between in ((b"id: 1\nda", False), (b"ta: x\n", False), (b"\n", True), (b": heartbeat\n\n", True)):
        tail.feed(part)
        assert tail.between_events is between
