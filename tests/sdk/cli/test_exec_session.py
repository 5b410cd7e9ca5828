"""`cloche exec --tty`: what the terminal of the program is told of the user's."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from cloche.cli._exec_session import ExecSession
from cloche.cli._own_terminal import OwnTerminal
from cloche.models import Tty


class Started:
    """As much of a process as `ExecSession` tells of sizes."""

    def __init__(self, cols: int, rows: int) -> None:
        self.info = SimpleNamespace(tty=Tty(cols=cols, rows=rows))
        self.sizes: asyncio.Queue[tuple[int, int]] = asyncio.Queue()

    async def resize(self, cols: int, rows: int) -> None:
        self.info.tty = Tty(cols=cols, rows=rows)
        self.sizes.put_nowait((cols, rows))


@pytest.fixture
def window(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("COLUMNS", "101")
    monkeypatch.setenv("LINES", "33")
    return monkeypatch


@pytest.mark.parametrize("before", [(90, 30), (101, 33)])
async def test_a_size_that_changed_while_the_program_started_is_told(
    window: pytest.MonkeyPatch, before: tuple[int, int]
) -> None:
    process = Started(*before)
    session = ExecSession(process, OwnTerminal(0, 1))  # type: ignore[arg-type]
    keeping = asyncio.create_task(session._keep_size())
    if before != (101, 33):
        assert await asyncio.wait_for(process.sizes.get(), 30) == (101, 33)
    for _ in range(10):
        await asyncio.sleep(0)
    assert process.sizes.empty()
    window.setenv("COLUMNS", "102")
    session._resized.set()
    assert await asyncio.wait_for(process.sizes.get(), 30) == (102, 33)
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)
    assert process.sizes.empty()
