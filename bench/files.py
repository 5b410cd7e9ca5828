"""``bench files``: many small files, and one large one, through the API and by programs inside.

The small-file load is what `npm install` and `git clone` do: tens of thousands of files in nested directories. Compare the
tables of two drivers: the goal is gVisor within 5 times of runc.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable

from bench._report import Table
from bench._samples import Samples, rows_of
from cloche import Client, Sandbox

_MAKE = """
import os, time
for d in range({directories}):
    os.makedirs(f'small/{{d % 20}}/{{d}}', exist_ok=True)
    for n in range({each}):
        with open(f'small/{{d % 20}}/{{d}}/{{n}}.js', 'wb') as file:
            file.write(b'x' * 700)
"""
_READ = """
import os
total = 0
for top, _, names in os.walk('small'):
    for name in names:
        with open(f'{top}/{name}', 'rb') as file:
            total += len(file.read())
"""
_GIT = """
import subprocess
run = lambda *argv: subprocess.run(argv, check=True, capture_output=True)
run('git', 'init', '-q', 'small')
run('git', '-C', 'small', 'add', '.')
run('git', '-C', 'small', '-c', 'user.email=a@b', '-c', 'user.name=n', 'commit', '-qm', '1')
"""


def measure(client: Client, image: str | None, driver: str, files: int, large_mb: int, n: int) -> Table:
    """One driver's table."""
    each = 50
    directories = files // each
    resources = {"disk_mb": 4 * large_mb + 2048, "memory_mb": 2048}
    rows: list[Samples] = []

    def timed(name: str, act: Callable[[], object]) -> None:
        samples = next((row for row in rows if row.name == name), None)
        if samples is None:
            samples = Samples(name)
            rows.append(samples)
        started = time.perf_counter()
        act()
        samples.add_s(time.perf_counter() - started)

    with Sandbox.create(image, client=client, driver=driver, resources=resources) as sandbox:
        sandbox.run("1")
        for _ in range(n):
            timed(f"{files} files made", lambda: _ok(sandbox, _MAKE.format(directories=directories, each=each)))
            timed("read", lambda: _ok(sandbox, _READ))
            timed("git add, git commit", lambda: _ok(sandbox, _GIT))
            timed("git clone", lambda: sandbox.files.clone("file:///workspace/small", "cloned"))
            timed("listed over the API", lambda: sandbox.files.list("cloned", depth=9))
            with tempfile.TemporaryDirectory() as directory:
                timed("downloaded as a tree", lambda: sandbox.files.download_tree("cloned", directory))
                sandbox.files.remove("cloned", recursive=True)
                timed("uploaded as a tree", lambda: sandbox.files.upload_tree(directory, "up"))
            timed("removed", lambda: sandbox.files.remove("up", recursive=True))
            sandbox.files.remove("small", recursive=True)
            timed("one file of 1 KiB written", lambda: sandbox.files.write("f", b"x" * 1024))
            timed("read back", lambda: sandbox.files.read("f"))
            timed(f"{large_mb} MiB written", lambda: sandbox.files.write("large", _Blocks(large_mb)))  # type: ignore[arg-type]
            timed(f"{large_mb} MiB read", lambda: sandbox.files.download("large", _Nowhere()))  # type: ignore[arg-type]
            sandbox.files.remove("large")
        memory = sandbox.run(_PEAK).stdout.strip()
    return Table(f"files on {driver}; memory: {memory}", rows_of(rows))


_PEAK = """
import glob, re
for path in glob.glob('/proc/[0-9]*/status'):
    text = open(path).read()
    command = open(path.replace('status', 'cmdline')).read().replace(chr(0), ' ')
    if 'cloche_guest' in command and 'kernel' not in command:
        found = re.search(r'VmHWM:\\s+(\\d+)', text) or re.search(r'VmRSS:\\s+(\\d+)', text)
        print('worker' if 'worker' in command else 'guest', int(found[1]) // 1024, 'MiB', end='; ')
"""


def _ok(sandbox: Sandbox, code: str) -> None:
    sandbox.run(code).raise_for_error()


class _Blocks:
    """A file object of so many MiB."""

    def __init__(self, mb: int) -> None:
        self._blocks = iter([os.urandom(1024 * 1024)] * mb)

    def read(self, _size: int) -> bytes:
        return next(self._blocks, b"")


class _Nowhere:
    def write(self, data: bytes) -> int:
        return len(data)
