"""``bench terminal``: the echo of a keystroke, and a flood of text, against terminado.

Like is compared with like, a table each: Cloche's guest and terminado, both on this machine without a sandbox; and for each
driver, a terminal through SDK and server, and terminado in the same sandbox through a preview of the same server. All take
turns in blocks of keystrokes, so that whatever else the machine does hits all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from bench._guest_alone import GuestAlone
from bench._report import Table
from bench._samples import Samples, rows_of
from bench._terminado import Terminado, TerminadoInSandbox
from cloche import Attachment, Client, Sandbox

BASELINE: Final = "terminado"
BLOCK: Final = 10
FLOODS: Final = 3
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


@dataclass(frozen=True, slots=True)
class Setting:
    """Where both run. ``echo``: attached; ``flood``: attaches a new one."""

    title: str
    echo: Mapping[str, Shell]
    flood: Mapping[str, Callable[[], AbstractContextManager[Shell]]]


def measure(client: Client, image: str | None, drivers: Sequence[str], n: int) -> list[Table]:
    """For each setting a table of echoes, and one of floods."""
    with ExitStack() as stack:
        settings = [_alone(stack)]
        for driver in drivers:
            place = stack.enter_context(Sandbox.create(image, client=client, driver=driver))
            settings.append(_in_sandbox(stack, place, driver))
        echoes = [_echoes(settings, n), _floods(settings)]
    return [
        Table(f"{what}, {setting.title}", rows_of(list(samples.values()), BASELINE), BASELINE)
        for what, found in zip(("echo of a keystroke", f"{FLOOD_BYTES / 1e6:.1f} MB of lines"), echoes, strict=True)
        for setting, samples in zip(settings, found, strict=True)
    ]


def _alone(stack: ExitStack) -> Setting:
    guest = stack.enter_context(GuestAlone())
    terminado = stack.enter_context(Terminado(COMMANDS))
    return Setting(
        "no server, no sandbox",
        {
            "guest alone": stack.enter_context(guest.attach(COMMANDS["echo"])),
            BASELINE: stack.enter_context(terminado.attach("echo")),
        },
        {
            "guest alone": partial(guest.attach, COMMANDS["flood"], record=False),
            BASELINE: partial(terminado.attach, "flood"),
        },
    )


def _in_sandbox(stack: ExitStack, place: Sandbox, driver: str) -> Setting:
    terminado = TerminadoInSandbox(place, COMMANDS)

    def flood() -> Attachment:
        return place.terminals.create(command=COMMANDS["flood"], record=False).attach()

    return Setting(
        f"{driver} sandbox, through the server",
        {
            "terminal": stack.enter_context(place.terminals.create(command=COMMANDS["echo"]).attach()),
            BASELINE: stack.enter_context(terminado.attach("echo")),
        },
        {"terminal": flood, BASELINE: partial(terminado.attach, "flood")},
    )


def _echoes(settings: Sequence[Setting], n: int) -> list[dict[str, Samples]]:
    found = [{name: Samples(name) for name in setting.echo} for setting in settings]
    for block in range(-1, -(-n // BLOCK)):  # block -1 warms up and is not counted
        for setting, samples in zip(settings, found, strict=True):
            for name, shell in setting.echo.items():
                times = [_echo_s(shell) for _ in range(BLOCK)]
                for seconds in times if block >= 0 else []:
                    samples[name].add_s(seconds)
    return found


def _floods(settings: Sequence[Setting]) -> list[dict[str, Samples]]:
    found = [{name: Samples(name) for name in setting.flood} for setting in settings]
    for _ in range(FLOODS):
        for setting, samples in zip(settings, found, strict=True):
            for name, attach in setting.flood.items():
                with attach() as shell:
                    samples[name].add_s(_flood_s(shell))
    return found


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
