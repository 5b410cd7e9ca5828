"""PID 1 of the sandboxes in these tests. It dials the uplink like the guest does, and runs what it is told.

One request per connection: a JSON line ``{"code", "user", "timeout_s"}``; the answer is ``{"code", "out", "ms"}``. The program is
run in a child, as root or as uid 1000, so that a probe which dies or eats memory does not take this process with it.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

SOCKET = "/run/cloche/uplink.sock"


def start(request: dict[str, Any]) -> tuple[int, int]:
    """Start the program; its output comes through the returned descriptor."""
    source, sink = os.pipe()
    pid = os.fork()
    if pid == 0:
        become(request, sink)
    os.close(sink)
    return pid, source


def become(request: dict[str, Any], sink: int) -> None:
    os.setsid()
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.closerange(3, 4096)
    if request["user"]:
        os.setgroups([])
        os.setgid(1000)
        os.setuid(1000)
        os.environ["HOME"] = "/home/user"
    os.execv(sys.executable, [sys.executable, "-I", "-c", request["code"]])


def read_until_end(source: int, deadline: float) -> bytes:
    output = b""
    while (left := deadline - time.monotonic()) > 0:
        if select.select([source], [], [], left)[0]:
            chunk = os.read(source, 65536)
            if not chunk:
                return output
            output = (output + chunk)[-262144:]
    return output


def run(request: dict[str, Any]) -> dict[str, Any]:
    begun = time.monotonic()
    pid, source = start(request)
    output = read_until_end(source, begun + request["timeout_s"])
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    os.close(source)
    reap_group(pid)
    reap()
    milliseconds = int((time.monotonic() - begun) * 1000)
    return {"code": os.waitstatus_to_exitcode(status), "out": output.decode(errors="replace"), "ms": milliseconds}


def reap_group(group: int) -> None:
    """What was killed with a program has ended before the next one: a bomb must not meet the rest of the one before."""
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-group, 0)


def reap() -> None:
    """As PID 1 must: orphans of the programs end up here."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def serve_one() -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(SOCKET)
        with connection.makefile("rw") as stream:
            line = stream.readline()
            if line:
                stream.write(json.dumps(run(json.loads(line))) + "\n")
                stream.flush()


with open("/run/first-state", "w") as file:
    file.write(f"cwd={os.getcwd()}\n")
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in (0, 1, 2, file.fileno()) and os.path.lexists(f"/proc/self/fd/{name}"):
            file.write(os.readlink(f"/proc/self/fd/{name}") + "\n")
print("inside: up", flush=True)
while True:
    try:
        serve_one()
    except OSError:
        reap()
        time.sleep(0.02)
