"""Full-screen programs after a reconnect: the same screen, cell by cell, in a headless xterm.js.

Every scenario has a viewer that was there all along, one whose connection was cut again and again, and one that came only
at the end. Tail logs, as others keep them, restored 0 to 10 % of such screens.
"""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from guest_process import wait_for
from viewer import Viewer

from cloche._terminal_stream import Output, Preamble, Reset, Resized, StreamEvent

WEB = Path(__file__).parents[3] / "web"

Make = Callable[..., dict[str, Any]]
Attach = Callable[..., Viewer]

PROGRESS = (
    "for i in $(seq 1 60); do printf '\\r\\033[K[%-60s] %d' \"$(printf '#%.0s' $(seq 1 $i))\" $i; sleep 0.005; done; "
    "echo; echo done"
)

SCENARIOS: dict[str, list[str | bytes | tuple[int, int]]] = {
    "shell": ["ls --color=always /\n", "seq 1 200\n", (100, 30), "echo grüße 日本語 😀\n", "seq 1 30\n"],
    "vim open": ["vim -u NONE -c 'set mouse=a number' FILE\n", "5j", "itext\x1b", (100, 30), "/line 1\n", "3j"],
    "vim left": ["seq 1 50\n", "vim -u NONE FILE\n", "5j", (90, 28), ":q!\n", "echo left\n"],
    "less": ["less -R FILE\n", "   ", (90, 30), "/line 90\n", "n"],
    "top": ["top -d 100\n", (100, 30)],
    "htop": ["htop -d 100\n", (100, 30)],
    "progress bar": [f"{PROGRESS}\n", (100, 30)],
    "python": [
        "python3 -q\n",
        "import sys\n",
        "for i in range(40): print('\\x1b[3%dm%d\\x1b[0m' % (i % 8, i))\n\n",
        (60, 20),
        "6*7\n",
    ],
}


class Recorder:
    """What a viewer would paint, as JSON for web/test/screens.mjs."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer
        self.painted: list[dict[str, Any]] = []
        self.size: tuple[int, int] | None = None
        take = viewer.take
        for event in viewer.events:
            self.record(event)

        def also(event: StreamEvent) -> None:
            self.record(event)
            take(event)

        viewer.take = also  # type: ignore[method-assign]

    def record(self, event: StreamEvent) -> None:
        match event:
            case Output(_, data) | Preamble(data):
                self.painted.append({"data": base64.b64encode(data).decode()})
            case Reset(cols=cols, rows=rows):
                self.size = (cols, rows)
                self.painted.append({"reset": True, "cols": cols, "rows": rows})
            case Resized(cols, rows):
                self.size = (cols, rows)
                self.painted.append({"cols": cols, "rows": rows})


def test_screens_are_the_same_after_a_reconnect(terminal: Make, attach: Attach, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("".join(f"line {n} \x1b[3{n % 8}mcolour\x1b[0m\n" for n in range(200)))
    with ThreadPoolExecutor(len(SCENARIOS)) as pool:  # at once: most of it is waiting until programs are quiet
        played = pool.map(lambda steps: play(terminal, attach, steps, str(file)), SCENARIOS.values())
        lines = [json.dumps({"name": name, "viewers": v}) for name, v in zip(SCENARIOS, played, strict=True)]
    done = subprocess.run(
        ["node", str(WEB / "test" / "screens.mjs")], input="\n".join(lines), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("lines compared") == len(SCENARIOS)


def play(
    terminal: Make, attach: Attach, steps: list[str | bytes | tuple[int, int]], file: str
) -> list[list[dict[str, Any]]]:
    made = terminal("sh", env={"PS1": "$ ", "ENV": ""})
    steady, shaky = Recorder(attach(made, "viewer-steady")), Recorder(attach(made, "viewer-shaky"))
    writer = steady.viewer
    for step in steps:
        if isinstance(step, tuple):
            assert writer.socket is not None
            writer.socket.send(json.dumps({"type": "resize", "cols": step[0], "rows": step[1]}))
        else:
            writer.type(step.replace("FILE", file) if isinstance(step, str) else step)
        shaky.viewer.pump(0.01)
        shaky.viewer.cut()
        settle(writer, 0.5)
        shaky.viewer.attach()
        shaky.viewer.pump(0.01)
    late = Recorder(attach(made, "viewer-late"))
    everybody = (steady, shaky, late)
    sizes = [step for step in steps if isinstance(step, tuple)]
    wait_for(lambda: equally_far(everybody, sizes), "all viewers to have seen the same")
    return [recorder.painted for recorder in everybody]


def equally_far(recorders: tuple[Recorder, ...], sizes: list[tuple[int, int]]) -> bool:
    """Also when the program, on a busy machine, wrote again after it seemed to be quiet, or a size came late."""
    for recorder in recorders:
        settle(recorder.viewer)
    same_size = {recorder.size for recorder in recorders} == set(sizes[-1:]) if sizes else True
    return same_size and len({recorder.viewer.position for recorder in recorders}) == 1


def settle(viewer: Viewer, first_s: float = 0.1) -> None:
    """Until the program is quiet; ``first_s`` is for its first answer."""
    viewer.pump(first_s)
    while viewer.pump(0.1):
        pass
