"""Text search with ripgrep."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from typing import Final, cast

from cloche.path_text import to_text
from cloche_guest.files.globs import to_ripgrep
from cloche_guest.files.worker.channel import Channel, Hangup, Json, Refused, printable, speaking_of

SHOWN_CHARACTERS: Final = 500
_MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""Of ripgrep's JSON for one line; a longer one is passed over, and the answer says truncated."""


def search(channel: Channel, order: Json) -> None:
    """The fields of `FileSearch`."""
    path: str = order["path"]
    with speaking_of(path):
        is_directory = os.path.isdir(path)
        os.stat(path)
    program = shutil.which("rg")
    if program is None:
        raise Refused("file_failed", "this image has no ripgrep (rg), which searches need", errno="ENOENT")
    argv = [program, *_arguments(order), "--", *(["."] if is_directory else [path])]
    process = subprocess.Popen(
        argv,
        cwd=path if is_directory else "/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"},
        start_new_session=True,
    )
    expired = threading.Event()
    watchdog = threading.Thread(target=_watch, args=(channel, process, order["timeout_s"], expired), daemon=True)
    watchdog.start()
    matches: list[Json] = []
    truncated = whole = False
    try:
        matches, truncated, whole = _collect(process, order["max_matches"])
    finally:
        if not whole:
            process.kill()
        errors = process.stderr.read(2000) if process.stderr else b""
        code = process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        watchdog.join()
    if code == 2 and not matches and not expired.is_set():
        _refuse(order, errors)
    channel.check()
    channel.answer({"matches": matches, "truncated": truncated, "timed_out": expired.is_set()})


def _refuse(order: Json, errors: bytes) -> None:
    """ripgrep's 2 also means that some file could not be read; only a bad pattern has nothing to do with files."""
    text = printable(errors.decode("utf-8", "replace").replace("\n", " "))
    if "regex parse error" in text or "error parsing" in text or "literal" in text or "size limit" in text:
        raise Refused(
            "invalid_request", f"not a regular expression: {text}", errors=[{"field": "pattern", "problem": text}]
        )


def _arguments(order: Json) -> Iterator[str]:
    yield from ("--json", "--no-config", "--no-ignore", "--no-messages", "--threads", "2", "--sort", "path")
    if not order["regex"]:
        yield "--fixed-strings"
    if order["ignore_case"]:
        yield "--ignore-case"
    if order["hidden"]:
        yield "--hidden"
    for pattern in order["include"]:
        yield f"--glob={_ripgrep_glob(pattern)}"
    for pattern in order["exclude"]:
        yield f"--glob=!{_ripgrep_glob(pattern)}"
    yield f"--regexp={order['pattern']}"


def _ripgrep_glob(pattern: str) -> str:
    """Anchored ones get a leading slash: ripgrep would match ``a/b`` at any depth otherwise."""
    escaped = to_ripgrep(pattern.strip("/") if "/" not in pattern.rstrip("/") else pattern.rstrip("/"))
    return f"/{escaped.lstrip('/')}" if "/" in escaped else escaped


def _watch(channel: Channel, process: subprocess.Popen[bytes], timeout_s: float, expired: threading.Event) -> None:
    left = timeout_s
    while process.poll() is None:
        try:
            process.wait(min(left, 0.2))
        except subprocess.TimeoutExpired:
            left -= 0.2
            with contextlib.suppress(Hangup):
                channel.check()
                if left > 0:
                    continue
                expired.set()
            process.kill()
            return


def _collect(process: subprocess.Popen[bytes], limit: int) -> tuple[list[Json], bool, bool]:
    """(matches, whether there is more, whether ripgrep came to its end)"""
    assert process.stdout is not None
    matches: list[Json] = []
    truncated = False
    while line := process.stdout.readline(_MAX_LINE_BYTES):
        if not line.endswith(b"\n"):
            truncated = True
            while line and not line.endswith(b"\n"):
                line = process.stdout.readline(_MAX_LINE_BYTES)
            continue
        if not line.startswith(b'{"type":"match"'):
            continue
        if len(matches) == limit:
            return matches, True, False
        matches.append(_match(json.loads(line)["data"]))
    return matches, truncated, True


def _match(data: Json) -> Json:
    line = _bytes(data["lines"])
    first = data["submatches"][0]
    before = line[: first["start"]].decode("utf-8", "replace")
    found = line[first["start"] : first["end"]].decode("utf-8", "replace")
    after = line[first["end"] :].decode("utf-8", "replace").rstrip("\r\n")
    lead = before[-(SHOWN_CHARACTERS // 2) :]
    text = (lead + found + after)[:SHOWN_CHARACTERS]
    end = min(len(lead) + len(found), len(text))
    name = os.fsdecode(_bytes(data["path"])).removeprefix("./")
    return {"path": to_text(name), "line": data["line_number"], "text": text, "start": len(lead), "end": end}


def _bytes(value: Json) -> bytes:
    """ripgrep says what is not UTF-8 in base64."""
    return base64.b64decode(value["bytes"]) if "bytes" in value else cast(str, value["text"]).encode()
