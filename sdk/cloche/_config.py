"""Config: which server, with which key. Environment and files are passed in, so that tests need neither.

| setting | from | else |
|---|---|---|
| url | argument, `CLOCHE_URL` | `http://127.0.0.1:8720` |
| api key | argument, `CLOCHE_API_KEY` | for a loopback url: `admin.key` of the server's data directory |

The data directory is `CLOCHE_DATA_DIR`, else `/var/lib/cloche` or `$XDG_DATA_HOME/cloche` (`~/.local/share/cloche`).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cloche.errors import InvalidRequest, Unauthenticated

DEFAULT_URL: Final = "http://127.0.0.1:8720"
KEY_FILE: Final = "admin.key"
SYSTEM_DATA_DIR: Final = "/var/lib/cloche"

ReadText = Callable[[Path], str]


@dataclass(frozen=True, slots=True)
class Config:
    """Where to connect. The key is kept out of ``repr``. ``key_file``: what it was read from."""

    url: str
    api_key: str | None = field(repr=False)
    is_loopback: bool
    key_file: Path | None = None


def load_config(url: str | None, api_key: str | None, environ: Mapping[str, str], read_text: ReadText) -> Config:
    """The settings in force.

    :param read_text: reads a file or raises `OSError`.
    :raises InvalidRequest: the URL or the key is malformed.
    :raises Unauthenticated: no key is given and none can be found.
    """
    chosen_url = (url or environ.get("CLOCHE_URL") or DEFAULT_URL).rstrip("/")
    loopback = is_loopback(host_of(chosen_url))
    key, file = api_key or environ.get("CLOCHE_API_KEY"), None
    if not key and loopback:
        key, file = find_key(environ, read_text)
    if not key:
        raise Unauthenticated(f"no API key for {chosen_url}", hint=_how_to_give_a_key(loopback, environ))
    if not (key.isascii() and key.isprintable()):
        raise InvalidRequest("the API key has characters that no key has", hint="look for a stray line break in it")
    return Config(chosen_url, key, loopback, file)


def host_of(url: str) -> str:
    """The host of ``url``.

    :raises InvalidRequest: not an http or https URL with a host and nothing but a path behind it.
    """
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidRequest(f"{url!r} is not a URL: {error}") from error
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment or parts.username:
        raise InvalidRequest(f"{url!r} is not the URL of a server", hint=f"it looks like {DEFAULT_URL}")
    return host


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine and no other: keys found in files are sent nowhere else."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def find_key(environ: Mapping[str, str], read_text: ReadText) -> tuple[str | None, Path | None]:
    """What the first key file holds that can be read and is not empty, and which that is."""
    for file in (directory / KEY_FILE for directory in data_dirs(environ)):
        try:
            key = read_text(file).strip()
        except (OSError, UnicodeDecodeError):
            continue
        if key:
            return key, file
    return None, None


def data_dirs(environ: Mapping[str, str]) -> list[Path]:
    """Where a server on this machine keeps its data: the one place it was told, else the two it uses by itself."""
    if told := environ.get("CLOCHE_DATA_DIR"):
        return [Path(told)]
    shared = environ.get("XDG_DATA_HOME")
    home = environ.get("HOME")
    own = Path(shared) if shared else Path(home) / ".local/share" if home else None
    return [Path(SYSTEM_DATA_DIR), *([own / "cloche"] if own else [])]


def _how_to_give_a_key(loopback: bool, environ: Mapping[str, str]) -> str:
    if not loopback:
        return "set CLOCHE_API_KEY; an admin makes keys with `cloche keys create`"
    places = ", ".join(str(directory / KEY_FILE) for directory in data_dirs(environ))
    return f"set CLOCHE_API_KEY, or run as a user who may read the server's first key (looked for {places})"
