"""terminado, the terminal server of Jupyter: on this machine without a sandbox, or in one, reached by a preview."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from websockets.sync.client import ClientConnection, connect

from bench._bare_in_sandbox import USER_PYTHON
from bench._gateway import environment
from bench._listening import wait_listening
from bench._preview_link import PreviewLink, preview_link
from cloche import Sandbox

REQUIREMENTS: Final = ("terminado==0.18.1", "tornado==6.5.2")

_SERVER: Final = """
import asyncio, json, os, sys, tornado.web, terminado
async def main():
    commands = json.loads(sys.argv[2])
    routes = []
    for name, command in commands.items():
        manager = terminado.UniqueTermManager(shell_command=command)
        routes.append((f"/{name}", terminado.TermSocket, {"term_manager": manager}))
    tornado.web.Application(routes).listen(int(sys.argv[1]), "127.0.0.1")
    await asyncio.Event().wait()
asyncio.run(main())
"""


class Terminado:
    """Serves one command for each name, a new terminal for each connection."""

    def __init__(self, commands: dict[str, list[str]]) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = int(probe.getsockname()[1])
        python = environment(REQUIREMENTS) / "bin/python"
        self._process = subprocess.Popen(
            [str(python), "-c", _SERVER, str(self._port), json.dumps(commands)],
            env={**os.environ, "PS1": "$ "},
            stderr=subprocess.DEVNULL,
        )

    def __enter__(self) -> Self:
        wait_listening(self._port, self._process, 30)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(20)

    def attach(self, name: str) -> TerminadoSocket:
        """A terminal with the program of that name."""
        return TerminadoSocket(f"ws://127.0.0.1:{self._port}/{name}")


class TerminadoInSandbox:
    """The same in a sandbox, behind what every app in one is behind; its packages are copied into it."""

    PORT: Final = 8100
    PACKAGES: Final = "/tmp/terminado"

    def __init__(self, sandbox: Sandbox, commands: dict[str, list[str]]) -> None:
        packages = next((environment(REQUIREMENTS) / "lib").glob("python3*/site-packages"))
        sandbox.files.upload_tree(packages, self.PACKAGES)
        command = [USER_PYTHON, "-c", _SERVER, str(self.PORT), json.dumps(commands)]
        app = sandbox.processes.start(command, env={"PYTHONPATH": self.PACKAGES, "PS1": "$ "})
        app.wait_for_port(self.PORT)
        self._link: PreviewLink = preview_link(sandbox, self.PORT)

    def attach(self, name: str) -> TerminadoSocket:
        """A terminal with the program of that name."""
        return TerminadoSocket(f"ws://{self._link.host}/{name}", self._link.port, {"Cookie": self._link.cookie})


class TerminadoSocket:
    """One terminal. Use it in a ``with`` block. ``port`` of this machine: where ``url`` is, when its name does not say."""

    def __init__(self, url: str, port: int | None = None, headers: Mapping[str, str] | None = None) -> None:
        self._url = url
        self._port = port
        self._headers = headers
        self._socket: ClientConnection | None = None

    def __enter__(self) -> Self:
        sock = socket.create_connection(("127.0.0.1", self._port)) if self._port is not None else None
        self._connecting = connect(
            self._url, sock=sock, additional_headers=self._headers, proxy=None, max_size=None, compression=None
        )
        self._socket = self._connecting.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connecting.__exit__(kind, error, trace)

    def send(self, text: str) -> None:
        assert self._socket is not None
        self._socket.send(json.dumps(["stdin", text]))

    def read(self) -> bytes:
        """The next output."""
        assert self._socket is not None
        while True:
            kind, *rest = json.loads(self._socket.recv(timeout=60))
            if kind == "stdout":
                return str(rest[0]).encode()
