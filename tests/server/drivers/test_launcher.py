"""The launcher's own parts: blank disks that are kept and copied, and what it says when it cannot even begin."""

from __future__ import annotations

import asyncio
import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cloche.errors import SandboxStartFailed
from cloche_server.drivers import OciDriver, SandboxSpec, _launcher, _launching, _oci_driver, _start
from cloche_server.drivers._cgroup import Cgroup
from cloche_server.drivers._launching import LauncherAhead
from cloche_server.drivers._layout import Layout
from cloche_server.drivers._runtimes import Runtime

from .harness import NOTHING, Limits, make_spec, new_id, running, traces

DISK_BYTES = 97 << 20
"""A size that no other test has."""


WRITE = "import os; open('/workspace/left', 'wb').write(os.urandom(1 << 20)); os.sync()"


def make_disk(directory: Path, name: str, blank: Path) -> Path:
    disk = directory / name
    _launcher.make_disk(str(disk), str(blank), DISK_BYTES, 16_384)
    return disk


def test_the_first_disk_of_a_size_is_formatted_and_the_next_are_sparse_copies_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blank = tmp_path / "blank/1.img"
    first = make_disk(tmp_path, "first.img", blank)
    assert blank.read_bytes() == first.read_bytes()
    monkeypatch.setattr(_launcher, "run", None)  # no tool is needed any more
    second = make_disk(tmp_path, "second.img", blank)
    assert second.read_bytes() == first.read_bytes()
    assert second.stat().st_blocks * 512 < 2 << 20 < DISK_BYTES
    assert second.stat().st_mode & 0o777 == 0o600
    subprocess.run(["e2fsck", "-fn", second], check=True, capture_output=True)


def test_only_some_sizes_are_kept(tmp_path: Path) -> None:
    kept = tmp_path / "blank"
    kept.mkdir()
    for number in range(_launcher.MAX_BLANKS - 1):
        (kept / str(number)).touch()
    for name in ("last", "one-too-many"):
        subprocess.run(
            ["e2fsck", "-fn", make_disk(tmp_path, f"{name}.img", kept / name)], check=True, capture_output=True
        )
    assert (kept / "last").exists()
    assert len(os.listdir(kept)) == _launcher.MAX_BLANKS


def test_a_blank_disk_that_is_there_already_is_left_alone(tmp_path: Path) -> None:
    disk, blank = tmp_path / "disk.img", tmp_path / "blank.img"
    disk.write_bytes(b"mine")
    blank.write_bytes(b"of the start that was first")
    _launcher.keep_blank(str(disk), str(blank))
    assert blank.read_bytes() == b"of the start that was first"
    assert sorted(os.listdir(tmp_path)) == ["blank.img", "disk.img"]


@pytest.mark.parametrize(("begin", "end"), [(0, 0), (0, 4096), (1 << 20, (1 << 20) + 5), ((3 << 20) - 7, 3 << 20)])
def test_data_is_copied_with_its_holes(tmp_path: Path, begin: int, end: int) -> None:
    with open(tmp_path / "source", "w+b") as source, open(tmp_path / "target", "w+b") as target:
        source.truncate(3 << 20)
        os.pwrite(source.fileno(), b"x" * (end - begin), begin)
        _launcher.copy_data(source.fileno(), target.fileno())
    assert (tmp_path / "target").read_bytes() == (tmp_path / "source").read_bytes()
    assert (tmp_path / "target").stat().st_blocks <= 16


def test_a_sandbox_never_changes_the_blank_disk_its_own_is_a_copy_of(
    driver: OciDriver, rootfs: Path, roots: Path, scratch: Path
) -> None:
    limits = replace(Limits(), disk_mb=DISK_BYTES >> 20)
    seen = []
    for _ in range(2):
        with running(driver, rootfs, scratch, resources=limits) as sandbox:
            assert sandbox.check("import os; print(os.path.exists('/workspace/left'))") == "False"
            sandbox.check(WRITE)
        seen.append((roots / f"data/disks/blank/1-{DISK_BYTES}.img").read_bytes())
    assert seen[0] == seen[1]


@pytest.mark.expected_logs("start . of sandbox")
def test_a_launcher_that_cannot_even_begin_says_why(
    driver: OciDriver, rootfs: Path, roots: Path, scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was silent until its console was open: "the runtime ended with 1", and an empty output."""
    broken = tmp_path / "_launcher.py"
    broken.write_text("def main(:\n")
    monkeypatch.setattr(_launching, "_LAUNCHER", broken)
    spec = make_spec(new_id(), rootfs, scratch)
    with pytest.raises(SandboxStartFailed, match=r"(?s)ended with 1.*SyntaxError") as caught:
        asyncio.run(driver.start(spec))
    assert "def main(:" in str(caught.value.details["output"])
    assert traces(spec.sandbox_id, roots) == NOTHING


@pytest.fixture
def ahead(driver: OciDriver) -> Iterator[LauncherAhead]:
    """Of a driver of this test's own, with a launcher that waits."""
    fresh = LauncherAhead()
    before, driver._launcher = driver._launcher, fresh
    fresh._make()
    yield fresh
    fresh.close()
    driver._launcher = before


def test_a_launcher_that_waits_is_the_next_ones(
    ahead: LauncherAhead, driver: OciDriver, rootfs: Path, scratch: Path
) -> None:
    waiting = ahead._waiting
    assert waiting is not None
    with running(driver, rootfs, scratch) as sandbox:
        assert waiting.returncode == 0
        assert ahead._waiting is None
        assert sandbox.check("print('alive')") == "alive"


@pytest.mark.expected_logs("start . of sandbox")
def test_a_launcher_that_waited_says_why_it_fails(
    ahead: LauncherAhead, driver: OciDriver, rootfs: Path, roots: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_oci_driver, "START_ATTEMPTS", 1)
    monkeypatch.setattr(_start, "write_orders", _breaking(_start.write_orders))
    spec = make_spec(new_id(), rootfs, scratch)
    with pytest.raises(SandboxStartFailed, match="/no/such/image") as caught:
        asyncio.run(driver.start(spec))
    assert "/no/such/image" in str(caught.value.details["output"])
    assert ahead._waiting is None
    assert traces(spec.sandbox_id, roots) == NOTHING


def _breaking(write: Callable[..., None]) -> Callable[..., None]:
    def write_wrong_ones(spec: SandboxSpec, runtime: Runtime, version: str, layout: Layout, cgroup: Cgroup) -> None:
        write(spec, runtime, version, layout, cgroup)
        orders = layout.of(spec.sandbox_id).orders
        orders.write_text(json.dumps(json.loads(orders.read_text()) | {"rootfs": "/no/such/image"}))

    return write_wrong_ones


def test_one_that_died_while_it_waited_is_not_missed(
    ahead: LauncherAhead, driver: OciDriver, rootfs: Path, scratch: Path
) -> None:
    waiting = ahead._waiting
    assert waiting is not None
    waiting.kill()
    os.waitid(os.P_PID, waiting.pid, os.WEXITED | os.WNOWAIT)
    with running(driver, rootfs, scratch) as sandbox:
        assert sandbox.check("print('alive')") == "alive"


AHEAD = """
import time
from cloche_server.drivers._launching import LauncherAhead
ahead = LauncherAhead()
ahead._make()
print(ahead._waiting.pid, flush=True)
time.sleep(1000)
"""


def test_it_ends_with_its_server() -> None:
    with subprocess.Popen([sys.executable, "-c", AHEAD], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        launcher = os.pidfd_open(int(server.stdout.readline()))
        assert not select.select([launcher], [], [], 0)[0]
        server.kill()
    assert select.select([launcher], [], [], 60)[0]
    os.close(launcher)


MUTE = """
import os
from cloche_server.drivers import _launcher

class Libc:
    def unshare(flags):
        os._exit(1)

_launcher.libc = Libc
try:
    _launcher.user_namespace(0x7000_0000)
except OSError as error:
    print(error)
"""


def test_a_helper_that_ends_without_a_word_is_not_waited_for() -> None:
    """A start one of whose processes was killed stood still for its whole bound, 20 s, before it was tried again."""
    done = subprocess.run([sys.executable, "-c", MUTE], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "no user namespace\n"
