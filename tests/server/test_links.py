"""Links and logins: what is signed, what is used once, and what does not pass."""

from __future__ import annotations

import pytest

from cloche_server.browser import cookie_name, share_token
from cloche_server.links import LOGIN_S, MAX_LOGINS, LinkSigner, Logins

SIGNER = LinkSigner(b"k" * 32)
TOKEN = SIGNER.sign("share", {"terminal": "t"}, 100)


def test_a_token_says_what_was_signed_until_it_is_over() -> None:
    assert SIGNER.read("share", TOKEN, 99) == {"terminal": "t"}
    assert SIGNER.read("share", TOKEN, 100) is None


def test_a_token_of_one_purpose_or_server_is_none_of_another() -> None:
    assert SIGNER.read("session", TOKEN, 0) is None
    assert LinkSigner(b"x" * 32).read("share", TOKEN, 0) is None


@pytest.mark.parametrize(
    "token", ["", "clt_", "clt_.", "clk_x", TOKEN[:-1], TOKEN + "A", "clt_é.é", "clt_" + "A" * 2000]
)
def test_forgeries_are_refused(token: str) -> None:
    assert SIGNER.read("share", token, 0) is None


def test_every_changed_character_is_noticed() -> None:
    for at in range(4, len(TOKEN) - 1):  # the last one has bits that mean nothing
        other = "A" if TOKEN[at] != "A" else "B"
        assert SIGNER.read("share", TOKEN[:at] + other + TOKEN[at + 1 :], 0) is None


def test_a_login_works_once_and_not_for_long() -> None:
    logins = Logins()
    token = logins.create("key-1", 0)
    assert logins.use(token, 1) == "key-1"
    assert logins.use(token, 1) is None
    late = logins.create("key-1", 0)
    assert logins.use(late, LOGIN_S) is None


def test_logins_are_bounded() -> None:
    logins = Logins()
    first = logins.create("key-1", 0)
    for _ in range(MAX_LOGINS):
        logins.create("key-1", 0)
    assert logins.use(first, 0) is None


def test_cookies_of_two_servers_on_one_host_do_not_meet() -> None:
    assert cookie_name("127.0.0.1:8720") != cookie_name("127.0.0.1:8721")


def test_where_a_link_shows_its_token() -> None:
    assert share_token(f"Bearer {TOKEN}", []) == TOKEN
    assert share_token(None, ["term.v1", f" cloche.share.{TOKEN}"]) == TOKEN
    assert share_token("Bearer clk_key", ["term.v1"]) is None
