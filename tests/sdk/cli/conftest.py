"""The command line in this process, with exit codes and output as a shell would see them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from protocol_app import KEY, Server

from cloche.cli._app import cloche
from cloche.cli._failures import run_command


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Cloche = Callable[..., Done]


@pytest.fixture
def run_cloche(server: Server, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Cloche:
    monkeypatch.setenv("CLOCHE_URL", server.url)
    monkeypatch.setenv("CLOCHE_API_KEY", KEY)

    def run(*arguments: str) -> Done:
        code = run_command(cloche, list(arguments))
        captured = capfd.readouterr()
        return Done(code, captured.out, captured.err)

    return run
