"""A run of `protocol_app`, played by orders.

It executes no Python. The code of a run is a list of orders, one a line: ``print TEXT``, ``warn TEXT`` (stderr),
``value TEXT`` (a result), ``image`` (a display), ``raise NAME TEXT``, ``input PROMPT``, ``hang`` (until interrupted),
``flood N`` (stdout events). `1+1` is known, too.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from cloche import models
from cloche.journal_feed import JournalFeed

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGNgYGBgAAAABQABh6FO1AAAAABJRU5ErkJggg=="
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


@dataclass
class PlayedRun:
    body: models.RunCreate
    run: models.Run
    feed: JournalFeed
    task: asyncio.Task[None] | None = None
    line: asyncio.Future[str] | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)


async def play(played: PlayedRun) -> None:
    """Carry out the orders of a run."""
    emit(played, "started", execution_count=played.run.execution_count, generation=1)
    status = models.RunStatus.OK
    try:
        for line in played.body.code.splitlines():
            if await obey(played, *line.partition(" ")[::2]):
                status = models.RunStatus.ERROR
                break
    except asyncio.CancelledError:
        status = models.RunStatus.INTERRUPTED
        fail(played, "KeyboardInterrupt", "")
    played.run = played.run.model_copy(
        update={"state": models.RunState.FINISHED, "status": status, "finished_at": NOW, "duration_s": 0.5}
    )
    emit(played, "finished", status=status, failure=None, kernel_restarted=False, duration_s=0.5)
    played.feed.close()
    played.done.set()


async def obey(played: PlayedRun, order: str, text: str) -> bool:
    """Carry out one order; true when the code raised."""
    match order:
        case "1+1":
            display(played, "result", {"text/plain": "2"})
        case "value":
            display(played, "result", {"text/plain": text})
        case "image":
            display(played, "display", {"image/png": PNG, "text/plain": "<Figure>"})
        case "print":
            stream(played, "stdout", text + "\n")
        case "warn":
            stream(played, "stderr", text + "\n")
        case "flood":
            for number in range(int(text)):
                stream(played, "stdout", f"{number}\n")
                await asyncio.sleep(0)
        case "hang":
            await asyncio.Event().wait()
        case "input":
            played.line = asyncio.get_running_loop().create_future()
            emit(played, "input_request", prompt=text, password=False)
            stream(played, "stdout", f"read {await played.line}\n")
        case "raise":
            name, _, value = text.partition(" ")
            fail(played, name, value)
            return True
    return False


def emit(played: PlayedRun, kind: str, **data: Any) -> None:
    played.feed.append(kind, json.dumps(data).encode())


def stream(played: PlayedRun, name: str, text: str) -> None:
    emit(played, name, text=text)
    outputs = played.run.outputs
    if outputs and isinstance(outputs[-1], models.StreamOutput) and outputs[-1].type == name:
        outputs[-1] = models.StreamOutput(type=name, text=outputs[-1].text + text)
    else:
        outputs.append(models.StreamOutput(type=name, text=text))


def display(played: PlayedRun, kind: str, data: dict[str, Any]) -> None:
    emit(played, kind, data=data, metadata={}, display_id=None, execution_count=1)
    played.run.outputs.append(models.DisplayOutput(type=kind, data=data, execution_count=1))


def fail(played: PlayedRun, name: str, value: str) -> None:
    error = models.RunError(name=name, value=value, traceback=[f"{name}: {value}"])
    emit(played, "error", **error.model_dump())
    played.run.outputs.append(models.ErrorOutput(**error.model_dump()))
    played.run = played.run.model_copy(update={"error": error})
