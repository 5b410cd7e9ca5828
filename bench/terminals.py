"""``bench terminal``: the echo of a keystroke, and a flood of text; through Cloche into a sandbox, against terminado without.

Keystrokes alternate between both in blocks, so that whatever else the machine does hits both.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, Protocol

from bench._report import Table
from bench._samples import Samples, rows_of
from bench._terminado import Terminado
from cloche import Client, Sandbox

BASELINE: Final = "terminado, no sandbox"
BLOCK: Final = 10
LINES: Final = 3_000_000
FLOOD_BYTES: Final = sum(len(str(n)) + 2 for n in range(1, LINES + 1))

COMMANDS: Final = {
    "echo": ["cat"],
    "flood": [
        "sh",
        "-c",
        f"stty -echo; seq 1 {LINES} > /tmp/flood; echo ready; read go; cat /tmp/flood; echo end; read stop",
    ],
}


class Shell(Protocol):
    """What both kinds of terminals offer."""

    def send(self, data: str, /) -> None: ...

    def read(self) -> bytes: ...


def measure(client: Client, image: str | None, drivers: Sequence[str], n: int) -> list[Table]:
    """Echo and flood, each with one row a driver and one for terminado."""
    echoes = {name: Samples(name) for name in [*drivers, BASELINE]}
    floods = {name: Samples(name) for name in [*drivers, BASELINE]}
    with ExitStack() as stack:
        terminado = stack.enter_context(Terminado(COMMANDS))
        places = {name: stack.enter_context(Sandbox.create(image, client=client, driver=name)) for name in drivers}
        shells: dict[str, Shell] = {
            name: stack.enter_context(place.terminals.create(command=COMMANDS["echo"]).attach())
            for name, place in places.items()
        }
        shells[BASELINE] = stack.enter_context(terminado.attach("echo"))
        for block in range(-1, -(-n // BLOCK)):  # block -1 warms up and is not counted
            for name, shell in shells.items():
                times = [_echo_s(shell) for _ in range(BLOCK)]
                for seconds in times if block >= 0 else []:
                    echoes[name].add_s(seconds)
        for _ in range(3):
            for name, place in places.items():
                with place.terminals.create(command=COMMANDS["flood"], record=False).attach() as shell:
                    floods[name].add_s(_flood_s(shell))
            with terminado.attach("flood") as shell:
                floods[BASELINE].add_s(_flood_s(shell))
    return [
        Table("echo of a keystroke", rows_of(list(echoes.values()), BASELINE), BASELINE),
        Table(f"{FLOOD_BYTES / 1e6:.1f} MB of lines", rows_of(list(floods.values()), BASELINE), BASELINE),
    ]


def _echo_s(shell: Shell) -> float:
    started = time.perf_counter()
    shell.send("x")
    while b"x" not in shell.read():
        pass
    return time.perf_counter() - started


def _flood_s(shell: Shell) -> float:
    while b"ready" not in shell.read():
        pass
    started = time.perf_counter()
    shell.send("\n")
    received, tail = 0, b""
    while b"end" not in tail:
        data = shell.read()
        received, tail = received + len(data), (tail + data)[-16:]
    assert received >= FLOOD_BYTES, f"{FLOOD_BYTES - received} bytes are missing"
    return time.perf_counter() - started
