"""The first line of an uplink: who is let in, and with which secret."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from cloche_server.auth import hash_secret
from cloche_server.uplink import Expected, check_hello

NOW = datetime(2026, 11, 29, tzinfo=UTC)
SESSION = "s" * 32
EXPECTED = Expected("a" * 20, "e1", hash_secret("boot"), {"A": "1"}, sudo=True)
HELLO = {"protocol": 1, "sandbox_id": "a" * 20, "epoch": "e1", "guest_epoch": "g1", "token": "boot", "session": SESSION}


def reply_to(expected: Expected = EXPECTED, **changes: object) -> object:
    hello, reply = check_hello(json.dumps(HELLO | changes).encode(), expected, NOW)
    assert (hello is None) == (reply.identity is None)
    return reply.identity or reply.refused


def test_the_token_of_the_environment_opens_the_first_uplink_and_brings_the_identity() -> None:
    identity = reply_to()
    assert (identity.sandbox_id, identity.env, identity.sudo) == ("a" * 20, {"A": "1"}, True)  # type: ignore[attr-defined]


def test_once_a_session_is_known_the_token_opens_nothing() -> None:
    """User code reads /proc/1/environ under gVisor; by then the token is spent."""
    spent = replace(EXPECTED, token_hash=hash_secret(SESSION))
    assert reply_to(spent, session="x" * 32) == "unknown token"
    assert not isinstance(reply_to(spent), str)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"token": "guess"}, "unknown token"),
        ({"sandbox_id": "b" * 20}, "unknown token"),
        ({"epoch": "e0"}, "this epoch has ended"),
        ({"protocol": 2}, "the protocol is not 1"),
        ({"session": "short"}, "not a hello"),
        ({"more": 1}, "not a hello"),
    ],
)
def test_anything_else_is_refused_without_saying_what_was_expected(changes: dict[str, object], refusal: str) -> None:
    assert reply_to(**changes) == refusal


@pytest.mark.parametrize("line", [b"", b"{}", b"\xff", b"[]", b"null", b'"x"'])
def test_garbage_is_refused(line: bytes) -> None:
    assert check_hello(line, EXPECTED, NOW)[1].refused == "not a hello"
