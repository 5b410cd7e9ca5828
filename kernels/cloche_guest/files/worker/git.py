"""``git clone``, watched."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import time
from typing import Final

from cloche.path_text import to_text
from cloche_guest.files.worker.changes import remove_tree
from cloche_guest.files.worker.channel import Channel, Json, Refused, printable, speaking_of

GRACE_S: Final = 5.0
"""Between SIGTERM, at which git removes what it has begun, and SIGKILL."""

_PROTOCOLS: Final = "http:https:ssh:git:file"
_KEPT_OUTPUT: Final = 4096
_PROGRESS: Final = re.compile(r"^(?:remote: )?([A-Z][a-z]+(?: [a-z]+)*):\s+(\d+)% \((\d+)/(\d+)\)")

_REASONS: Final = (
    ("branch_not_found", re.compile(r"Remote branch .* not found", re.IGNORECASE)),
    ("authentication", re.compile(r"Authentication failed|Permission denied|could not read (Username|Password)|403", re.I)),
    ("network", re.compile(r"Could not resolve|Failed to connect|Connection (refused|timed out|reset)|unreachable"
                           r"|Could not connect|unable to access|early EOF|unexpected disconnect|unable to connect", re.I)),
    ("not_found", re.compile(r"not found|does not exist|does not appear to be a git repository|No such file", re.I)),
)  # fmt: skip


def reason_of(output: str) -> str:
    """What git's words mean. A guess by nature, made from phrases that have been stable for years; else ``other``."""
    return next((reason for reason, pattern in _REASONS if pattern.search(output)), "other")


def clone(channel: Channel, order: Json) -> None:
    """``url``, ``path``, ``depth``, ``branch``, ``timeout_s``, ``env``: progress as data frames, then the result."""
    path: str = order["path"]
    with speaking_of(path):
        existed = os.path.lexists(path)
        if existed and (not os.path.isdir(path) or os.listdir(path)):
            raise Refused("already_exists", f"{printable(path)} exists and is not an empty directory")
        os.makedirs(os.path.dirname(path.rstrip("/")) or "/", exist_ok=True)
    process = _start(order)
    try:
        output, timed_out = _attend(channel, process, order["timeout_s"])
    except BaseException:
        _end(process)
        _clean(path, existed)
        raise
    if process.returncode:
        _clean(path, existed)
        raise _failure(order, process.returncode, output, timed_out)
    channel.answer({"path": to_text(path), "commit": _ask(order, "rev-parse", "-q", "--verify", "HEAD"),
                    "branch": _ask(order, "symbolic-ref", "-q", "--short", "HEAD")})  # fmt: skip


def _start(order: Json) -> subprocess.Popen[bytes]:
    argv = ["git", "clone", "--progress", "--no-local"]
    if order["depth"] is not None:
        argv.append(f"--depth={order['depth']}")
    if order["branch"] is not None:
        argv.append(f"--branch={order['branch']}")
    try:
        return subprocess.Popen(
            [*argv, "--", order["url"], order["path"]],
            cwd="/",
            env=_environment(order),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise Refused("git_failed", "this image has no git", reason="other", output="") from error


def _environment(order: Json) -> dict[str, str]:
    """No questions: nobody is there to answer them."""
    ours = {"GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "SSH_ASKPASS": "true", "LC_ALL": "C.UTF-8",
            "GIT_SSH_COMMAND": "ssh -oBatchMode=yes", "GIT_ALLOW_PROTOCOL": _PROTOCOLS}  # fmt: skip
    return {**order["env"], **ours}


def _attend(channel: Channel, process: subprocess.Popen[bytes], timeout_s: float) -> tuple[str, bool]:
    """git's last words, and whether it was stopped for taking too long."""
    assert process.stderr is not None
    ends = time.monotonic() + timeout_s
    output, line = "", b""
    poll = select.poll()
    poll.register(process.stderr, select.POLLIN)
    while True:
        channel.check()
        if time.monotonic() > ends:
            _end(process)
            return output, True
        if not poll.poll(200):
            continue
        data = os.read(process.stderr.fileno(), 65536)
        if not data:
            break
        *lines, line = re.split(rb"[\r\n]", line[-_KEPT_OUTPUT:] + data)
        for said in lines:
            text = said.decode("utf-8", "replace").strip()
            if text:
                output = _report(channel, text, output)
    process.wait()
    return output + line.decode("utf-8", "replace"), False


def _report(channel: Channel, text: str, output: str) -> str:
    match = _PROGRESS.match(text)
    if match is None:
        return f"{output}{text}\n"[-_KEPT_OUTPUT:]
    phase, percent, done, total = match.groups()
    event = {"phase": phase, "percent": int(percent), "done": int(done), "total": int(total)}
    channel.data(json.dumps(event).encode())
    return output


def _end(process: subprocess.Popen[bytes]) -> None:
    for number, grace in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace)
            return


def _clean(path: str, existed: bool) -> None:
    """git removes what it made unless it was killed."""
    if not existed:
        with contextlib.suppress(OSError):
            remove_tree(path)


def _failure(order: Json, code: int, output: str, timed_out: bool) -> Refused:
    said = output.strip()[-2000:]
    reason = "timeout" if timed_out else reason_of(output)
    what = f"took longer than {order['timeout_s']:g} s" if timed_out else f"failed ({code})"
    words = printable("; ".join(said[-300:].splitlines()))
    return Refused("git_failed", f"git clone {what}: {words}", reason=reason, output=said)


def _ask(order: Json, *arguments: str) -> str | None:
    done = subprocess.run(
        ["git", "-C", order["path"], *arguments], capture_output=True, env=_environment(order), check=False, timeout=10
    )
    return done.stdout.decode("utf-8", "replace").strip() or None
