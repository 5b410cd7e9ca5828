"""``bench process``: start to exit of `true`, and how fast a log is taken, against a bare subprocess in the same sandbox.

- `true`: exec through SDK, server and guest; of this what the guest itself sees (start to exit, as the record says); and
  `subprocess.run` of Python in the same sandbox, as the same user.
- A log of `LOG_MIB`: how long the program takes to write it, when the guest keeps the journal and when a Python program
  reads the pipe and throws it away; and how long the SDK takes to follow `FOLLOWED_MIB` of text that are all kept.
"""

from __future__ import annotations

import json
import time
from typing import Final

from bench._report import Table
from bench._samples import Samples, rows_of
from cloche import Client, ExecResult, Sandbox, output_bytes

LOG_MIB: Final = 64
FOLLOWED_MIB: Final = 8
BASELINE: Final = "bare subprocess"

BARE: Final = """
import json, subprocess, sys, time
n, size = int(sys.argv[1]), int(sys.argv[2])
def timed(work):
    began = time.perf_counter(); work(); return time.perf_counter() - began
def log():
    p = subprocess.Popen(["head", "-c", str(size), "/dev/zero"], stdout=subprocess.PIPE, bufsize=0)
    while p.stdout.read(65536): pass
    p.stdout.close(); p.wait()
true = [timed(lambda: subprocess.run(["true"], capture_output=True)) for _ in range(n)]
print(json.dumps([true, [timed(log) for _ in range(max(1, n // 10))]]))
"""


def measure(client: Client, image: str | None, driver: str, n: int) -> list[Table]:
    """One driver's tables."""
    ours, guest, bare = Samples("cloche exec()"), Samples("cloche, start to exit in the guest"), Samples(BASELINE)
    log, bare_log = Samples("cloche, the program's time"), Samples(BASELINE)
    followed = Samples(f"cloche, {FOLLOWED_MIB} MiB of text to the SDK")
    size = LOG_MIB << 20
    with Sandbox.create(image, client=client, driver=driver) as sandbox:
        for _ in range(5):
            sandbox.exec(["true"]).raise_for_error()
        for _ in range(n):
            began = time.perf_counter()
            result = sandbox.exec(["true"]).raise_for_error()
            ours.add_s(time.perf_counter() - began)
            guest.add_s(_duration_s(result))
        for _ in range(max(1, n // 10)):
            log.add_s(_duration_s(sandbox.exec(["head", "-c", str(size), "/dev/zero"], max_output_bytes=1000)))
            followed.add_s(_follow(sandbox))
        told = sandbox.exec(["python3", "-c", BARE, str(n), str(size)]).raise_for_error()
        for samples, times in zip((bare, bare_log), json.loads(told.stdout), strict=True):
            samples.ms += [seconds * 1000 for seconds in times]
    return [
        Table(f"`true` on {driver}", rows_of([bare, guest, ours], BASELINE), BASELINE),
        Table(f"a log of {LOG_MIB} MiB on {driver}", rows_of([bare_log, log, followed], BASELINE), BASELINE),
    ]


def _follow(sandbox: Sandbox) -> float:
    """Seconds from start to end of following a text that is kept whole."""
    began = time.perf_counter()
    process = sandbox.processes.start(f"yes 'a line of a log, as they are' | head -c {FOLLOWED_MIB << 20}")
    size = sum(len(output_bytes(event)) for event in process.events() if event.type == "stdout")
    assert size == FOLLOWED_MIB << 20
    return time.perf_counter() - began


def _duration_s(result: ExecResult) -> float:
    assert result.duration_s is not None
    return result.duration_s
