"""``bench soak``: many contexts of many sandboxes at work at once. Nothing may be wrong, mixed up or growing.

Every context counts in a variable of its own and answers with its own marker; each cell's result is known beforehand,
so a lost variable, an output of somebody else, a repeated or a missing line is seen at once.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cloche import Client, Context, RunStatus, Sandbox

SAMPLES: Final = 8
"""Looks at memory and descriptors, evenly spread; growth is judged from the second on, when caches are full."""

GROWTH: Final = 1.25
SLACK_MB: Final = 24
SLACK_FILES: Final = 40
"""Allowed between the second look and the last: the kept runs of a context are bounded, but fill up over hundreds of runs."""


@dataclass
class Findings:
    """Shared by all workers."""

    runs: int = 0
    wrong: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, problem: str | None) -> None:
        with self.lock:
            self.runs += 1
            if problem:
                self.wrong.append(problem)


@dataclass(frozen=True, slots=True)
class Sample:
    """Of one process, or the sum of several."""

    memory_mb: float
    files: int


class Worker:
    """One context and what it must answer."""

    def __init__(self, context: Context, marker: str, seed: int) -> None:
        self._context = context
        self._marker = marker
        self._count = 0
        self._random = random.Random(seed)
        context.run(f"marker, count = {marker!r}, 0").raise_for_error()

    def step(self) -> str | None:
        """One cell; what was wrong with it, or None."""
        cell: Callable[[], str | None] = self._random.choice(
            [self._counts, self._counts, self._prints, self._raises, self._displays, self._starts_a_child]
        )
        problem = cell()
        return f"{self._marker}: {problem}" if problem else None

    def _counts(self) -> str | None:
        self._count += 1
        text = self._context.run("count += 1; (marker, count)").text
        return _differs(text, f"({self._marker!r}, {self._count})")

    def _prints(self) -> str | None:
        lines = self._random.randrange(1, 3000)
        result = self._context.run(f"for i in range({lines}): print(marker, i)")
        return _differs(result.stdout, "".join(f"{self._marker} {i}\n" for i in range(lines)))

    def _raises(self) -> str | None:
        result = self._context.run("raise ValueError(marker)")
        told = (result.status, result.error and result.error.value)
        return _differs(told, (RunStatus.ERROR, self._marker))

    def _displays(self) -> str | None:
        result = self._context.run("from IPython.display import HTML, display; display(HTML(marker)); count")
        data = [output.data.get("text/html") for output in result.outputs if output.type == "display"]
        return _differs((data, result.text), ([self._marker], str(self._count)))

    def _starts_a_child(self) -> str | None:
        result = self._context.run("import subprocess; subprocess.run(['echo', marker]).returncode")
        return _differs((result.stdout, result.text), (self._marker + "\n", "0"))


def _differs(got: object, wanted: object) -> str | None:
    return None if got == wanted else f"wanted {str(wanted)[-200:]!r}, got {str(got)[-200:]!r}"


def measure(
    client: Client, image: str | None, driver: str, sandboxes: int, contexts: int, seconds: float, server_pid: int
) -> tuple[str, bool]:
    """What happened, and whether all was right and flat."""
    findings = Findings()
    with ExitStack() as stack:
        boxes = [stack.enter_context(Sandbox.create(image, client=client, driver=driver)) for _ in range(sandboxes)]
        workers = [
            Worker(box.contexts.create(), f"{number}-{place}", 100 * number + place)
            for number, box in enumerate(boxes)
            for place in range(contexts)
        ]
        samples = _work(workers, boxes, findings, seconds, server_pid)
    flat = _is_flat(samples)
    return _report(driver, workers, findings, samples, flat), flat and not findings.wrong


def _work(
    workers: list[Worker], boxes: list[Sandbox], findings: Findings, seconds: float, server_pid: int
) -> list[tuple[Sample, Sample]]:
    """Everybody at once; meanwhile looks at the server and at the guests."""
    end = time.monotonic() + seconds

    def work(worker: Worker) -> None:
        while time.monotonic() < end:
            findings.note(worker.step())

    samples = []
    with ThreadPoolExecutor(len(workers)) as pool:
        tasks = [pool.submit(work, worker) for worker in workers]
        for _ in range(SAMPLES):
            time.sleep(seconds / SAMPLES)
            samples.append((_of_process(server_pid), _of_guests(boxes)))
        for task in tasks:
            task.result()
    return samples


def _of_process(pid: int) -> Sample:
    status = Path(f"/proc/{pid}/status").read_text()
    resident_kb = int(status.partition("VmRSS:")[2].split()[0])
    return Sample(resident_kb / 1024, len(list(Path(f"/proc/{pid}/fd").iterdir())))


_LOOK: Final = """
import subprocess
print(open('/proc/1/status').read().partition('VmRSS:')[2].split()[0])
print(subprocess.run('sudo ls /proc/1/fd | wc -l', shell=True, capture_output=True, text=True).stdout)
"""


def _of_guests(boxes: list[Sandbox]) -> Sample:
    """Summed over all, asked from within: a guest is PID 1 of its sandbox."""
    answers = [[int(word) for word in box.run(_LOOK).stdout.split()] for box in boxes]
    return Sample(sum(a[0] for a in answers) / 1024, sum(a[1] for a in answers))


def _is_flat(samples: list[tuple[Sample, Sample]]) -> bool:
    return all(
        last.memory_mb <= early.memory_mb * GROWTH + SLACK_MB and last.files <= early.files + SLACK_FILES
        for early, last in zip(samples[1], samples[-1], strict=True)
    )


def _report(
    driver: str, workers: list[Worker], findings: Findings, samples: list[tuple[Sample, Sample]], flat: bool
) -> str:
    verdict = f"{findings.runs} runs, {len(findings.wrong)} wrong, {'flat' if flat else 'GROWING'}"
    lines = [f"soak on {driver}, {len(workers)} contexts: {verdict}", "       server          guests"]
    for number, (server, guests) in enumerate(samples, 1):
        lines.append(
            f"look {number}  {server.memory_mb:4.0f} MB {server.files:3} fds  {guests.memory_mb:5.0f} MB {guests.files:4} fds"
        )
    return "\n".join(lines + findings.wrong[:10])
