"""The pure parts: names, tokens, and the rules for headers as a table (security.md 4, items 1 to 9)."""

from __future__ import annotations

import base64

import pytest

from cloche.errors import PortClosed
from cloche_server.auth import new_secret
from cloche_server.preview._headers import (
    Border,
    cookies_named,
    foreign_cookies,
    holds_key,
    own_cookie,
    request_headers,
    response_headers,
    token_of,
    without_token,
)
from cloche_server.preview._names import PreviewHost, parse_host
from cloche_server.preview._pages import PAGE_CSP, answer_of, no_preview
from cloche_server.preview._tokens import Purpose, check_token, new_preview_secret, sign_token

ID = "abcdefghij0123456789"
OTHER = "zzzzzzzzzz0123456789"
HOST = f"8000-{ID}.localhost:8720"
KEY = new_secret()


def border(private: bool = True, scheme: str = "http") -> Border:
    return Border(
        PreviewHost(8000, ID, HOST), scheme, "localhost", private, lambda name: name.startswith("api.example")
    )


# Names


@pytest.mark.parametrize(
    ("host", "found"),
    [
        (HOST, (8000, ID)),
        (HOST.upper(), (8000, ID)),  # names have no case
        (f"8000-{ID}.localhost", (8000, ID)),
        (f"65535-{ID}.localhost", (65535, ID)),
        # security.md 4, items 6 and 7: nothing else is a preview, and the API does not know these names either
        (f"65536-{ID}.localhost", None),
        (f"0-{ID}.localhost", None),
        (f"08000-{ID}.localhost", None),
        (f"-1-{ID}.localhost", None),
        (f"8000-{ID}.localhost.", None),
        (f"8000-{ID}.localhost:", None),
        (f"8000-{ID}.localhost:80@evil", None),
        (f"8000-{ID}@evil.localhost", None),
        (f"8000-{ID}.evil.localhost", None),
        (f"8000-{ID}.localhost.evil.example", None),
        (f"x.8000-{ID}.localhost", None),
        (f"8000-{ID}", None),
        (f"8000-{ID[:-1]}.localhost", None),
        (f"٨٠٠٠-{ID}.localhost", None),
        ("localhost:8720", None),
        ("127.0.0.1", None),
        ("[::1]:8720", None),
        ("", None),
    ],
)
def test_names(host: str, found: tuple[int, str] | None) -> None:
    parsed = parse_host(host, "localhost")
    assert (parsed and (parsed.port, parsed.sandbox_id)) == found


# Tokens


def test_a_token_is_good_for_its_purpose_and_time_alone() -> None:
    secret = new_preview_secret()
    purpose = Purpose("link", ID, 8000)
    token = sign_token(secret, purpose, 1_000)
    assert check_token(secret, purpose, token, 999) == 1_000
    assert check_token(secret, purpose, token, 1_000) is None
    for other in (Purpose("cookie", ID, 8000), Purpose("link", OTHER, 8000), Purpose("link", ID, 8001)):
        assert check_token(secret, other, token, 0) is None
    assert check_token(new_preview_secret(), purpose, token, 0) is None


def test_no_changed_token_is_good() -> None:
    secret, purpose = new_preview_secret(), Purpose("link", ID, 8000)
    token = sign_token(secret, purpose, 2**40)
    for place in range(len(token)):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        # The last letter of base64 has two bits that stand for nothing.
        same = base64.urlsafe_b64decode(changed[4:] + "=") == base64.urlsafe_b64decode(token[4:] + "=")
        assert (check_token(secret, purpose, changed, 0) is None) or (same and place == len(token) - 1)


@pytest.mark.parametrize(
    "text", ["", "clt_", "x" * 79, "clt_" + "é" * 75, "clt_" + "=" * 75, "clt_" + "A" * 75, KEY, "clt_" * 9999]
)
def test_nonsense_is_no_token(text: str) -> None:
    assert check_token(new_preview_secret(), Purpose("link", ID, 8000), text, 0) is None


def test_tokens_differ_and_have_no_character_a_url_escapes() -> None:
    secret, purpose = new_preview_secret(), Purpose("link", ID, 8000)
    tokens = {sign_token(secret, purpose, 10) for _ in range(100)}
    assert len(tokens) == 100
    assert all(c.isalnum() or c in "_-" for token in tokens for c in token)


# Targets


@pytest.mark.parametrize(
    ("target", "stripped", "token"),
    [
        ("/", "/", None),
        ("/a?cloche_token=t", "/a", "t"),
        ("/a?x=1&cloche_token=t&y=%2F", "/a?x=1&y=%2F", "t"),
        ("/a?cloche_token=t&cloche_token=u", "/a", "t"),
        ("/a%2Fb/../c//d?q=%41+%20&&=", "/a%2Fb/../c//d?q=%41+%20&&=", None),  # daytonaio/daytona#4448
        ("/cloche_token=t?", "/cloche_token=t?", None),
        ("/?my_cloche_token=t", "/?my_cloche_token=t", None),
        ("//evil.example/?cloche_token=t", "//evil.example/", "t"),
    ],
)
def test_our_parameter_alone_is_taken_from_a_target(target: str, stripped: str, token: str | None) -> None:
    assert without_token(target) == stripped
    assert token_of(target) == token


# What an app sees

FIXED = {"host": "localhost:8000", "x-forwarded-for": "192.0.2.1", "cloche-preview-origin": f"http://{HOST}"}


def sent(*given: tuple[str, str], upgrade: bool = False) -> dict[str, str]:
    listed = request_headers([("Host", HOST), *given], border(), "192.0.2.1", upgrade)
    assert len({name.lower() for name, _ in listed}) == len(listed)
    return {name.lower(): value for name, value in listed}


@pytest.mark.parametrize(
    ("header", "arrives"),
    [
        # ours: never
        (("Cookie", "cloche_preview=clt_x"), None),
        (("Cookie", "a=1; cloche_preview=x; b=2; __Host-cloche_preview=y"), "a=1; b=2"),
        (("Cookie", "CLOCHE_PREVIEW=x; __host-Cloche_session=y; a=1"), "a=1"),
        (("Cookie", "cloche=session; cloche_8720=session; cloches=1"), "cloches=1"),
        (("Cookie", f"a={KEY}; b=1"), "b=1"),
        (("Authorization", f"Bearer {KEY}"), None),
        (("authorization", f"bearer   {KEY}"), None),
        (("Authorization", "Basic " + base64.b64encode(f"user:{KEY}".encode()).decode()), None),
        (("X-Api-Key", KEY), None),
        (("Cloche-Anything", "1"), None),
        (("X-Cloche-Sandbox", "1"), None),
        # the app's: always
        (("Authorization", "Bearer eyJhbGciOi"), "Bearer eyJhbGciOi"),
        (("Authorization", "Basic dXNlcjpwYXNz"), "Basic dXNlcjpwYXNz"),
        (("X-CSRF-Token", "t"), "t"),
        (("Cookie", "session=1; theme=dark"), "session=1; theme=dark"),
        (("Accept-Encoding", "gzip"), "gzip"),
        (("Range", "bytes=0-1"), "bytes=0-1"),
        # what only a proxy may say
        (("X-Forwarded-For", "6.6.6.6"), "192.0.2.1"),
        (("X_Forwarded_For", "6.6.6.6"), None),
        (("X-Forwarded-Host", "evil.example"), None),
        (("X-Forwarded-Proto", "https"), None),
        (("Forwarded", "for=6.6.6.6"), None),
        (("Via", "1.1 evil"), None),
        (("X-Real-IP", "6.6.6.6"), None),
        (("X-Original-URL", "/admin"), None),
        (("X-Rewrite-URL", "/admin"), None),
        # of one hop
        (("Connection", "keep-alive"), None),
        (("Keep-Alive", "timeout=5"), None),
        (("TE", "trailers"), None),
        (("Trailer", "X-Sum"), None),
        (("Transfer-Encoding", "chunked"), None),
        (("Upgrade", "h2c"), None),
        (("HTTP2-Settings", "AAMAAABkAAQAAP__"), None),
        (("Proxy-Authorization", "Basic x"), None),
        (("Expect", "100-continue"), None),
        # one world: localhost
        (("Origin", f"http://{HOST}"), "http://localhost:8000"),
        (("Origin", f"https://{HOST}"), "http://localhost:8000"),
        (("Origin", f"http://5173-{ID}.localhost:8720"), "http://localhost:5173"),
        (("Origin", f"http://8000-{OTHER}.localhost:8720"), f"http://8000-{OTHER}.localhost:8720"),
        (("Origin", "https://evil.example"), "https://evil.example"),
        (("Origin", "null"), "null"),
        (("Referer", f"http://{HOST}/a?b=%20"), "http://localhost:8000/a?b=%20"),
        (("Referer", f"http://{HOST}/a?cloche_token=t&b=1"), "http://localhost:8000/a?b=1"),
    ],
)
def test_request_headers(header: tuple[str, str], arrives: str | None) -> None:
    found = sent(header)
    assert found.get(header[0].lower()) == arrives
    assert {name: found[name] for name in FIXED} == FIXED


def test_headers_that_connection_names_are_of_one_hop() -> None:
    assert "x-secret" not in sent(("Connection", "close, X-Secret"), ("X-Secret", "1"))
    assert sent(("X-Secret", "1"))["x-secret"] == "1"
    assert sent(("Connection", "Host, X-Forwarded-For, Cloche-Preview-Origin")).items() >= FIXED.items()


def test_an_upgrade_sees_the_same_world_as_a_plain_request() -> None:
    """cloudflare/sandbox-sdk#917: upgrades carried the public Host and plain requests localhost, so Vite never connected."""
    given = [("Origin", f"http://{HOST}"), ("Sec-WebSocket-Protocol", "vite-hmr"), ("Cookie", "cloche_preview=x; a=1")]
    plain, upgrade = sent(*given), sent(*given, ("Connection", "Upgrade"), ("Upgrade", "websocket"), upgrade=True)
    assert upgrade == {**plain, "connection": "Upgrade", "upgrade": "websocket"}
    assert (upgrade["host"], upgrade["origin"]) == ("localhost:8000", "http://localhost:8000")


# What a browser sees


@pytest.mark.parametrize(
    ("header", "arrives"),
    [
        (("Set-Cookie", "a=1; Domain=localhost; Path=/"), "a=1; Path=/"),
        (("Set-Cookie", "a=1;domain=.example.com ;Secure"), "a=1;Secure"),
        (("Set-Cookie", "a=1; Path=/; HttpOnly"), "a=1; Path=/; HttpOnly"),
        (("Set-Cookie", "domain=1"), "domain=1"),
        (("Set-Cookie", "cloche_preview=stolen"), None),
        (("Set-Cookie", "__Host-cloche_preview=stolen; Secure; Path=/"), None),
        (("Set-Cookie", " __Secure-Cloche_x=1"), None),
        (("Clear-Site-Data", '"*"'), None),
        (("Service-Worker-Allowed", "/"), None),
        (("Strict-Transport-Security", "max-age=9; includeSubDomains"), None),
        (("Alt-Svc", 'h3=":443"'), None),
        (("Refresh", "0; url=http://evil"), None),
        (("NEL", "{}"), None),
        (("X-Accel-Redirect", "/etc/passwd"), None),
        (("X-Sendfile", "/etc/passwd"), None),
        (("X-Accel-Buffering", "no"), "no"),
        (("Connection", "keep-alive"), None),
        (("Keep-Alive", "timeout=5"), None),
        (("Transfer-Encoding", "chunked"), None),
        (("Proxy-Authenticate", "Basic"), None),
        (("Cloche-Run-Id", "run-1"), None),
        (("Location", "/next?a=%20"), "/next?a=%20"),
        (("Location", "next"), "next"),
        (("Location", "http://localhost:8000/next?a=%20"), f"http://{HOST}/next?a=%20"),
        (("Location", "http://127.0.0.1:5173/"), f"http://5173-{ID}.localhost:8720/"),
        (("Location", "//localhost:8000/x"), f"http://{HOST}/x"),
        (("Location", "https://github.com/login"), "https://github.com/login"),
        (("Location", "https://api.example.com/v1/keys"), None),
        (("Location", "http://localhost:8000@evil.example/"), "http://localhost:8000@evil.example/"),
        (("Access-Control-Allow-Origin", "http://localhost:5173"), f"http://5173-{ID}.localhost:8720"),
        (("Access-Control-Allow-Origin", "*"), "*"),
        (("Content-Security-Policy", "default-src 'self'"), "default-src 'self'"),
        (("Content-Length", "3"), "3"),
        (("ETag", '"x"'), '"x"'),
    ],
)
def test_response_headers(header: tuple[str, str], arrives: str | None) -> None:
    found = response_headers([header], border(private=False))
    assert found == ([] if arrives is None else [(header[0], arrives)])


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ("public, max-age=31536000, immutable", "private, max-age=31536000, immutable"),
        ("no-store", "private, no-store"),
        ("s-maxage=60, max-age=1", "private, max-age=1"),
        (None, "private"),
    ],
)
def test_shared_caches_do_not_keep_private_previews(given: str | None, becomes: str) -> None:
    headers = [] if given is None else [("Cache-Control", given)]
    assert response_headers(headers, border()) == [("Cache-Control", becomes)]
    assert response_headers(headers, border(private=False)) == headers


def test_length_stays_although_connection_names_it() -> None:
    assert response_headers(
        [("Connection", "content-length, x-a"), ("Content-Length", "3"), ("X-A", "1")], border(False)
    ) == [("Content-Length", "3")]


def test_cookies_are_found_and_taken_out() -> None:
    header = 'a=1; cloche_preview=x;cloche_preview=y ; b="q"'
    assert cookies_named(header, "cloche_preview") == ["x", "y"]
    assert foreign_cookies(header) == 'a=1; b="q"'
    assert own_cookie("a=1; DOMAIN=x") == "a=1"
    assert not holds_key("Basic ///not base64")


# Pages


def test_pages_run_nothing_and_say_nothing_about_reasons() -> None:
    page = answer_of(no_preview(), "req-1", as_page=True)
    assert page.status == 404
    assert ("Content-Security-Policy", PAGE_CSP) in page.headers
    assert "script" not in PAGE_CSP
    assert b"<script" not in page.body
    assert answer_of(no_preview(), "req-1", as_page=False).body.startswith(b'{"code":"not_found"')


def test_the_waiting_page_asks_again_and_a_program_is_told_when() -> None:
    closed = PortClosed("nothing listens", details={"port": 8000})
    page = answer_of(closed, "req-1", as_page=True)
    assert page.status == 503
    assert b'http-equiv="refresh" content="1"' in page.body
    program = answer_of(closed, "req-1", as_page=False)
    assert ("Retry-After", "1") in program.headers
    assert b'"code":"port_closed"' in program.body
