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
HELLO = {"protocol": 2, "sandbox_id": "a" * 20, "epoch": "e1", "guest_epoch": "g1", "token": "boot", "session": SESSION}


def reply_to(expected: Expected = EXPECTED, **changes: object) -> object:
    verdict = check_hello(json.dumps(HELLO | changes).encode(), expected, NOW)
    assert (verdict.hello is None) == (verdict.reply.identity is None)
    return verdict.reply.identity or verdict.reply.refused


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
        ({"protocol": 1}, "the protocol is not 2"),
        ({"protocol": 3, "a_field_of_its_own": 1}, "the protocol is not 2"),
        ({"protocol": "2.5"}, "not a hello"),
        ({"session": "short"}, "not a hello"),
        ({"more": 1}, "not a hello"),
    ],
)
def test_anything_else_is_refused_without_saying_what_was_expected(changes: dict[str, object], refusal: str) -> None:
    assert reply_to(**changes) == refusal


@pytest.mark.parametrize("line", [b"", b"{}", b"\xff", b"[]", b"null", b'"x"'])
def test_garbage_is_refused(line: bytes) -> None:
    assert check_hello(line, EXPECTED, NOW).reply.refused == "not a hello"


def test_only_a_protocol_of_its_own_is_called_wrong() -> None:
    def wrong(**changes: object) -> int:
        return check_hello(json.dumps(HELLO | changes).encode(), EXPECTED, NOW).wrong_protocol

    assert wrong(protocol=1) == 1
    assert wrong(token="guess") == wrong(session="short") == wrong() == 0


RESTORED = replace(
    EXPECTED,
    token_hash=hash_secret(SESSION),
    previous=("b" * 20, "e0"),
    seed="0a" * 32,
    reason="fork",
)


def test_a_guest_out_of_a_checkpoint_is_told_who_it_is_now() -> None:
    line = json.dumps(HELLO | {"sandbox_id": "b" * 20, "epoch": "e0"}).encode()
    verdict = check_hello(line, RESTORED, NOW)
    assert verdict.hello is None  # it serves nothing on this connection
    assert verdict.reply.reborn
    identity = verdict.reply.identity
    assert identity is not None
    assert (identity.sandbox_id, identity.epoch) == ("a" * 20, "e1")
    assert (identity.seed, identity.reason) == ("0a" * 32, "fork")


def test_with_its_new_identity_and_the_old_session_as_its_token_it_is_let_in() -> None:
    line = json.dumps(HELLO | {"token": SESSION, "session": "n" * 32}).encode()
    verdict = check_hello(line, RESTORED, NOW)
    assert verdict.hello is not None
    assert not verdict.reply.reborn


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"session": "x" * 32, "token": SESSION}, "unknown token"),  # only the guest's memory has the session
        ({"epoch": "e-"}, "unknown token"),
        ({"sandbox_id": "c" * 20}, "unknown token"),
        ({"protocol": 1}, "the protocol is not 2"),
    ],
)
def test_nobody_else_is_told_anything(changes: dict[str, object], refusal: str) -> None:
    hello = HELLO | {"sandbox_id": "b" * 20, "epoch": "e0"} | changes
    verdict = check_hello(json.dumps(hello).encode(), RESTORED, NOW)
    assert (verdict.hello, verdict.reply.identity, verdict.reply.refused) == (None, None, refusal)


def test_the_identity_of_before_opens_nothing_where_nothing_was_restored() -> None:
    plain = replace(RESTORED, previous=None)
    line = json.dumps(HELLO | {"sandbox_id": "b" * 20, "epoch": "e0"}).encode()
    assert check_hello(line, plain, NOW).reply.refused == "unknown token"


CLAIMED = EXPECTED.claimed("e2", {"A": "2"})


@pytest.mark.parametrize(("epoch", "env"), [("e1", {"A": "1"}), ("e2", {"A": "2"})])
def test_a_guest_that_was_claimed_may_say_either_epoch(epoch: str, env: dict[str, str]) -> None:
    """Its dials and the call that tells it cross on the way."""
    identity = reply_to(CLAIMED, epoch=epoch)
    assert (identity.epoch, identity.env) == (epoch, env)  # type: ignore[attr-defined]


@pytest.mark.parametrize("epoch", ["e1", "e2"])
def test_once_it_was_told_it_hears_only_what_it_is_now(epoch: str) -> None:
    """A hello that was on its way when it was told was refused, and the log said so in every burst of claims."""
    identity = reply_to(replace(CLAIMED, former_env=None), epoch=epoch)
    assert (identity.epoch, identity.env) == ("e2", {"A": "2"})  # type: ignore[attr-defined]


def test_the_epochs_of_others_have_ended() -> None:
    assert reply_to(CLAIMED, epoch="e3") == "this epoch has ended"
