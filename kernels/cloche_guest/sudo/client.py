#!/opt/cloche/bin/python -IS
"""The program ``sudo`` of the images. Alone in its file and without imports of the project, so that it starts fast.

Sends its arguments, environment, directory and standard descriptors to the guest, passes signals on, and ends as the
command did. Exit 1 when it was refused, as sudo does.
"""

import array
import contextlib
import json
import os
import signal
import socket
import sys

PATH = os.environ.get("CLOCHE_SUDO_SOCKET", "/run/cloche-guest/sudo.sock")
FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGWINCH,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


def working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "/"


def request() -> bytes:
    values = {"arguments": sys.argv[1:], "env": dict(os.environ), "cwd": working_directory()}
    return json.dumps(values).encode("utf-8", "replace") + b"\n"


def open_closed_descriptors() -> None:
    """Somebody may have closed them (``>&-``); a closed one cannot be passed, and its number must not become another's."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(descriptor)


def send(guest: socket.socket) -> None:
    """The descriptors go with the first byte."""
    data = request()
    descriptors = array.array("i", [0, 1, 2])
    sent = guest.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
    if sent < len(data):  # else the guest may have answered and closed already
        guest.sendall(data[sent:])


def pass_on(guest: socket.socket, number: int) -> None:
    with contextlib.suppress(BrokenPipeError):  # the command has ended; its end is about to be read
        guest.sendall(json.dumps({"signal": number}).encode() + b"\n")


def attend(guest: socket.socket) -> int:
    """Read answers until the last one; its exit code."""
    for line in guest.makefile("rb"):
        answer = json.loads(line)
        if "refused" in answer:
            sys.stderr.write(answer["refused"] + "\n")
            return 1
        if "text" in answer:
            sys.stdout.write(answer["text"])
            return 0
        if "code" in answer:
            return int(answer["code"])
        if "signal" in answer:
            return 128 + int(answer["signal"])
    sys.stderr.write("sudo: the guest went away\n")
    return 1


def main() -> int:
    open_closed_descriptors()
    guest = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        guest.connect(PATH)
    except OSError as error:
        sys.stderr.write(f"sudo: no guest at {PATH}: {error.strerror}\n")
        return 1
    for number in FORWARDED:
        signal.signal(number, lambda got, _: pass_on(guest, got))
    send(guest)
    return attend(guest)


if __name__ == "__main__":
    sys.exit(main())
