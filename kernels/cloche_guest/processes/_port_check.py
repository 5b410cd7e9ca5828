"""One look at a port of the sandbox' loopback: is somebody there, and does it answer as it should?"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Final

from cloche.models import PortCondition

HOSTS: Final = ("127.0.0.1", "::1")
"""Servers listen on one of them, or on both: `localhost` of Node is ::1."""

MAX_HEAD_BYTES: Final = 64 * 1024
_STATUS: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: |\r|$)")


async def check_port(condition: PortCondition) -> str | None:
    """None when it is as wanted, else what it is instead. Bounded by the condition's own time."""
    try:
        async with asyncio.timeout(condition.check_timeout_s):
            return await _check(condition)
    except TimeoutError:
        return f"no answer within {condition.check_timeout_s:g} s"


async def _check(condition: PortCondition) -> str | None:
    problem = "nobody listens"
    for host in HOSTS:
        try:
            reader, writer = await asyncio.open_connection(host, condition.port, limit=MAX_HEAD_BYTES)
        except OSError:
            continue
        try:
            if condition.protocol == "tcp":
                return None
            said = await _ask(condition, reader, writer)
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()
        if said is None:
            return None
        problem = said
    return problem


async def _ask(condition: PortCondition, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str | None:
    try:
        writer.write(_request(condition))
        line = await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError:
        return "it closed the connection without an answer"
    except asyncio.LimitOverrunError:
        return "its answer is not HTTP"
    except OSError as error:
        return f"the connection failed: {error.strerror or error}"
    match = _STATUS.match(line)
    if match is None:
        return "its answer is not HTTP"
    status = int(match[1])
    return None if condition.status_from <= status <= condition.status_to else f"HTTP status {status}"


def _request(condition: PortCondition) -> bytes:
    headers = {"Host": f"localhost:{condition.port}", "Accept": "*/*", "User-Agent": "cloche", "Connection": "close"}
    given = {name.lower() for name in condition.headers}
    headers = {name: value for name, value in headers.items() if name.lower() not in given} | condition.headers
    lines = [f"GET {condition.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("ascii")
