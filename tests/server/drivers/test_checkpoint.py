"""Saving a sandbox and starting from what was saved; what fails leaves the source as it was and no directory."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from cloche.errors import (
    InternalError,
    InvalidRequest,
    SandboxNotRunning,
    SandboxStartFailed,
    StorageFull,
    UnsupportedCapability,
)
from cloche_server.drivers import Checkpoint, OciDriver, RunState, SandboxSpec
from cloche_server.drivers._checkpoint import read_record
from cloche_server.drivers._checkpoint_maker import CheckpointMaker
from cloche_server.drivers._control import Control, ControlFailed

from .harness import NOTHING, Limits, Sandbox, Uplink, make_spec, new_id, running, traces

BEAT = """
import os, secrets, time
if os.fork() == 0:
    os.setsid()
    for fd in range(3): os.close(fd)
    token, n = secrets.token_hex(8), 0
    while True:
        n += 1
        with open("/dev/shm/beat.new", "w") as file: file.write(f"{token} {n}")
        os.rename("/dev/shm/beat.new", "/dev/shm/beat")
        time.sleep(0.01)
while not os.path.exists("/dev/shm/beat"): time.sleep(0.01)
"""
"""A process that keeps a secret and a count in its memory and shows them."""


def beat(sandbox: Sandbox) -> tuple[str, int]:
    token, count = sandbox.check("print(open('/dev/shm/beat').read())").split()
    return token, int(count)


def next_beat(sandbox: Sandbox, last: tuple[str, int]) -> tuple[str, int]:
    ends = time.monotonic() + 60
    while (found := beat(sandbox))[1] <= last[1]:
        assert time.monotonic() < ends, f"it stands still at {found}"
    return found


def save(sandbox: Sandbox, directory: Path, *, keep_running: bool = True) -> Checkpoint:
    """As the server does: nobody listens meanwhile, and a dial that was under way is worth another try."""
    sandbox.uplink.close()
    try:
        for attempt in range(20):
            try:
                return asyncio.run(sandbox.driver.checkpoint(sandbox.id, directory, keep_running=keep_running))
            except InternalError as error:
                if error.details.get("reason") != "open_uplinks" or attempt == 19:
                    raise
                time.sleep(0.02)
        raise AssertionError("unreachable")
    finally:
        sandbox.uplink = Uplink(sandbox.uplink.directory)


@contextmanager
def restored(source: Sandbox, rootfs: Path, uplink: Path, directory: Path, **changes: object) -> Iterator[Sandbox]:
    with running(source.driver, rootfs, uplink, checkpoint=directory, **changes) as child:
        yield child


@pytest.fixture
def source(driver: OciDriver, rootfs: Path, scratch: Path) -> Iterator[Sandbox]:
    with running(driver, rootfs, scratch / "source") as sandbox:
        yield sandbox


@pytest.fixture
def gvisor_source(drivers: dict[str, OciDriver], rootfs: Path, scratch: Path) -> Iterator[Sandbox]:
    with running(drivers["gvisor"], rootfs, scratch / "source") as sandbox:
        yield sandbox


def test_files_are_there_in_the_copy_and_neither_sees_the_others_changes(
    source: Sandbox, rootfs: Path, scratch: Path
) -> None:
    """Also a removed file of the image, owners, modes and a hole."""
    source.check(
        "import os; p = '/workspace/f'; open(p, 'w').write('saved'); os.chown(p, 1000, 1000); os.chmod(p, 0o640)\n"
        "os.remove('/etc/motd'); open('/workspace/hole', 'w').truncate(1 << 22)"
    )
    began = time.monotonic()
    done = save(source, scratch / "saved")
    assert done.files
    assert done.size_bytes > 0
    assert 0 < done.pause_s < time.monotonic() - began
    source.check("open('/workspace/f', 'w').write('source')")
    with restored(source, rootfs, scratch / "copy", scratch / "saved") as copy:
        look = (
            "import os; s = os.stat('/workspace/f'); print(open('/workspace/f').read(), s.st_uid, oct(s.st_mode)[-3:],"
        )
        look += " os.path.exists('/etc/motd'), os.stat('/workspace/hole').st_size)"
        assert copy.check(look) == "saved 1000 640 False 4194304"
        copy.check("open('/workspace/f', 'a').write(' copy')", user=True)
        assert copy.check("print(open('/workspace/f').read())") == "saved copy"
        assert source.check("print(open('/workspace/f').read())") == "source"
    with restored(source, rootfs, scratch / "second", scratch / "saved") as second:
        assert second.check("print(open('/workspace/f').read())") == "saved"


def test_memory_goes_on_in_source_and_copy(gvisor_source: Sandbox, rootfs: Path, scratch: Path) -> None:
    gvisor_source.check(BEAT)
    token, before = beat(gvisor_source)
    assert save(gvisor_source, scratch / "saved").memory
    with restored(gvisor_source, rootfs, scratch / "copy", scratch / "saved") as copy:
        for sandbox in (gvisor_source, copy):
            first = beat(sandbox)
            assert first[0] == token
            assert before <= first[1]
            assert next_beat(sandbox, first)[0] == token


def test_runc_saves_no_memory_and_says_so(drivers: dict[str, OciDriver], rootfs: Path, scratch: Path) -> None:
    assert "memory_snapshot" in drivers["gvisor"].capabilities
    assert "memory_snapshot" not in drivers["runc"].capabilities
    with running(drivers["runc"], rootfs, scratch / "source") as sandbox:
        assert not save(sandbox, scratch / "saved").memory


def test_suspended_it_leaves_nothing_but_the_directory_and_wakes_under_its_id(
    source: Sandbox, roots: Path, rootfs: Path, scratch: Path
) -> None:
    source.check("open('/workspace/f', 'w').write('kept')")
    save(source, scratch / "saved", keep_running=False)
    assert traces(source.id, roots) == NOTHING
    assert asyncio.run(source.driver.inspect(source.id)).state is RunState.UNKNOWN
    asyncio.run(
        source.driver.start(make_spec(source.id, rootfs, source.uplink.directory, checkpoint=scratch / "saved"))
    )
    assert source.check("print(open('/workspace/f').read())") == "kept"


def test_again_and_again(source: Sandbox, rootfs: Path, scratch: Path) -> None:
    """A public failure elsewhere: writes after the second resume were lost."""
    for turn in range(4):
        source.check(f"open('/workspace/log', 'a').write('{turn} ')")
        save(source, scratch / f"{turn}", keep_running=False)
        spec = make_spec(source.id, rootfs, source.uplink.directory, checkpoint=scratch / f"{turn}")
        asyncio.run(source.driver.start(spec))
        shutil.rmtree(scratch / f"{turn}")  # nothing needs it once the sandbox runs
    assert source.check("print(open('/workspace/log').read())") == "0 1 2 3"


def test_more_memory_than_the_limit_without_the_allowance_comes_back(
    drivers: dict[str, OciDriver], rootfs: Path, scratch: Path
) -> None:
    """What the guest may fill, and the runtime's own need beside it, has to fit while it is restored, too."""
    limits = Limits(memory_mb=256)
    fill = "import os, time\nif os.fork() == 0:\n x = os.urandom(1 << 20) * 245\n open('/dev/shm/full', 'w')\n"
    fill += " os.setsid(); [os.close(fd) for fd in range(3)]\n while True: time.sleep(1)\n"
    fill += "while not os.path.exists('/dev/shm/full'): time.sleep(0.01)"
    with running(drivers["gvisor"], rootfs, scratch / "source", resources=limits) as source:
        source.check(fill)
        save(source, scratch / "saved")
        with restored(source, rootfs, scratch / "copy", scratch / "saved", resources=limits) as copy:
            assert copy.check("import os; print(os.path.exists('/dev/shm/full'))") == "True"


# -- what fails


def test_a_full_disk_is_told_and_the_source_goes_on(source: Sandbox, rootfs: Path, scratch: Path) -> None:
    with _small_disk(scratch / "small", megabytes=3) as small:
        source.check("import os; open('/workspace/big', 'wb').write(os.urandom(8 << 20))")
        with pytest.raises(StorageFull):
            save(source, small / "saved")
        assert not list(small.iterdir())
        assert asyncio.run(source.driver.inspect(source.id)).state is RunState.RUNNING
        assert source.check("import os; print(os.stat('/workspace/big').st_size)") == str(8 << 20)
    save(source, scratch / "saved")
    with restored(source, rootfs, scratch / "copy", scratch / "saved") as copy:
        assert copy.check("import os; print(os.stat('/workspace/big').st_size)") == str(8 << 20)


@contextmanager
def _small_disk(directory: Path, megabytes: int) -> Iterator[Path]:
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(directory)], check=True)
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def test_open_uplinks_are_refused_with_the_runtimes_words(gvisor_source: Sandbox, scratch: Path) -> None:
    connection, _ = gvisor_source.uplink.accept()
    driver = gvisor_source.driver
    with connection, pytest.raises(InternalError, match=r"(?s)a connection to the host.*the runtime said") as caught:
        asyncio.run(driver.checkpoint(gvisor_source.id, scratch / "saved", keep_running=True))
    assert caught.value.details["reason"] == "open_uplinks"
    assert not (scratch / "saved").exists()
    assert gvisor_source.check("print('alive')") == "alive"
    assert save(gvisor_source, scratch / "saved").memory


def test_a_directory_that_is_there_or_has_no_parent_is_refused(source: Sandbox, scratch: Path) -> None:
    (scratch / "there").mkdir()
    (scratch / "there" / "mine").touch()
    for bad in (scratch / "there", scratch / "no" / "parent"):
        with pytest.raises(InvalidRequest):
            asyncio.run(source.driver.checkpoint(source.id, bad, keep_running=True))
    assert (scratch / "there" / "mine").exists()


def test_what_does_not_run_is_not_saved(driver: OciDriver, scratch: Path) -> None:
    for call in (
        lambda: driver.checkpoint(new_id(), scratch / "saved", keep_running=True),
        lambda: driver.pause(new_id()),
        lambda: driver.resume(new_id()),
    ):
        with pytest.raises(SandboxNotRunning):
            asyncio.run(call())
    assert not (scratch / "saved").exists()


def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_starts(
    source: Sandbox, drivers: dict[str, OciDriver], rootfs: Path, scratch: Path
) -> None:
    save(source, scratch / "saved")
    other = drivers["runc" if source.driver.name == "gvisor" else "gvisor"]
    uplink = source.uplink.directory
    with pytest.raises(InvalidRequest, match="of driver"):
        asyncio.run(other.start(make_spec(new_id(), rootfs, uplink, checkpoint=scratch / "saved")))
    bigger = make_spec(new_id(), rootfs, uplink, checkpoint=scratch / "saved", resources=Limits(disk_mb=200))
    with pytest.raises(InvalidRequest, match="a disk of 96 MiB, not 200"):
        asyncio.run(source.driver.start(bigger))
    with pytest.raises(InvalidRequest, match="no checkpoint"):
        asyncio.run(source.driver.start(make_spec(new_id(), rootfs, uplink, checkpoint=scratch)))


@pytest.mark.expected_logs("start . of sandbox")
def test_a_damaged_checkpoint_is_a_failed_start_that_leaves_nothing(
    source: Sandbox, roots: Path, rootfs: Path, scratch: Path
) -> None:
    save(source, scratch / "saved")
    for file in (scratch / "saved").glob("*.img"):
        size = file.stat().st_size
        file.write_bytes(b"x" * 5000)
        os.truncate(file, size)
    spec = make_spec(new_id(), rootfs, source.uplink.directory, checkpoint=scratch / "saved")
    with pytest.raises(SandboxStartFailed) as caught:
        asyncio.run(source.driver.start(spec))
    assert caught.value.details["output"]
    assert traces(spec.sandbox_id, roots) == NOTHING


def test_a_checkpoint_that_is_not_whole_is_refused_before_anything_starts(
    source: Sandbox, roots: Path, rootfs: Path, scratch: Path
) -> None:
    """Each of its files cut short, or gone; the copy that is whole starts."""
    save(source, scratch / "saved")
    names = sorted(file.name for file in (scratch / "saved").iterdir())
    spec = make_spec(new_id(), rootfs, source.uplink.directory, checkpoint=scratch / "half")
    for name, cut in ((name, cut) for name in names for cut in (True, False)):
        shutil.copytree(scratch / "saved", scratch / "half")
        if cut:
            os.truncate(scratch / "half" / name, (scratch / "half" / name).stat().st_size - 1)
        else:
            (scratch / "half" / name).unlink()
        with pytest.raises(InvalidRequest, match=r"not whole|no checkpoint"):
            asyncio.run(source.driver.start(spec))
        assert traces(spec.sandbox_id, roots) == NOTHING
        shutil.rmtree(scratch / "half")
    shutil.copytree(scratch / "saved", scratch / "half")
    with restored(source, rootfs, scratch / "copy", scratch / "half") as copy:
        assert copy.check("print('alive')") == "alive"


@pytest.mark.parametrize(
    "step",
    [
        "_checkpoint_maker.CheckpointMaker._save_by_kind",
        "_checkpoint_maker.CheckpointMaker._record",
        "_checkpoint_maker.make_durable",
        "_oci_driver.OciDriver._remove_saved",
    ],
)
def test_what_ends_for_good_has_its_name_only_when_it_is_whole(
    source: Sandbox, roots: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """A failure at each step: before the name there is no directory and the source goes on, and is saved the next time."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "the disk fails here")

    monkeypatch.setattr(f"cloche_server.drivers.{step}", fail)
    sandbox_id, driver = source.id, source.driver
    with pytest.raises((InternalError, OSError), match="the disk fails here"):
        save(source, scratch / "saved", keep_running=False)
    named = (scratch / "saved").exists()
    assert named == step.endswith("_remove_saved")
    assert not (scratch / "saved.tmp").exists()
    monkeypatch.undo()
    if not named:
        assert source.check("print('alive')") == "alive"
        assert asyncio.run(driver.inspect(sandbox_id)).state is RunState.RUNNING
        save(source, scratch / "saved", keep_running=False)
        assert traces(sandbox_id, roots) == NOTHING
    read_record(scratch / "saved")


def test_memory_that_another_version_saved_is_refused_before_anything_starts(
    source: Sandbox, roots: Path, rootfs: Path, scratch: Path
) -> None:
    """Files are files: runc reads them all the same."""
    save(source, scratch / "saved")
    record = json.loads((scratch / "saved/checkpoint.json").read_text())
    assert record["runtime"]
    (scratch / "saved/checkpoint.json").write_text(json.dumps(record | {"runtime": "0.0~20990101"}))
    spec = make_spec(new_id(), rootfs, scratch / "copy", checkpoint=scratch / "saved")
    if record["memory"]:
        (scratch / "copy").mkdir()
        with pytest.raises(UnsupportedCapability, match=r"saved by gvisor 0\.0~20990101") as caught:
            asyncio.run(source.driver.start(spec))
        assert caught.value.details["here"] == record["runtime"]
        assert traces(spec.sandbox_id, roots) == NOTHING
        return
    with restored(source, rootfs, scratch / "copy", scratch / "saved") as copy:
        assert copy.check("print('alive')") == "alive"


def test_memory_is_of_the_version_that_its_sandbox_was_started_with(
    drivers: dict[str, OciDriver], roots: Path, rootfs: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The binary may be replaced under a sandbox that runs: the one that is there then cannot read what that one saves."""
    driver = drivers["gvisor"]
    with running(driver, rootfs, scratch / "source") as source:
        save(source, scratch / "before")
        version = json.loads((scratch / "before/checkpoint.json").read_text())["runtime"]

        async def another(_maker: CheckpointMaker) -> str:
            return "0.0~20990101"

        monkeypatch.setattr(CheckpointMaker, "version", another)
        save(source, scratch / "saved")
        assert json.loads((scratch / "saved/checkpoint.json").read_text())["runtime"] == version
        for saved in (False, True):
            spec = make_spec(new_id(), rootfs, source.uplink.directory, checkpoint=scratch / "saved")
            with pytest.raises(UnsupportedCapability, match=f"saved by gvisor {version}, and 0.0~20990101 is here"):
                asyncio.run(_start(driver, spec, beside_its_save=saved))
            assert traces(spec.sandbox_id, roots) == NOTHING
        monkeypatch.undo()
    with restored(source, rootfs, scratch / "copy", scratch / "saved") as copy:
        assert copy.check("print('alive')") == "alive"


async def _start(driver: OciDriver, spec: SandboxSpec, *, beside_its_save: bool) -> None:
    saved = asyncio.get_running_loop().create_future()
    saved.set_result(None)
    await driver.start(spec, saved=saved if beside_its_save else None)


@pytest.mark.expected_logs("start 1 of sandbox")
def test_memory_of_another_processor_is_refused_with_what_is_missing(
    drivers: dict[str, OciDriver], roots: Path, rootfs: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the runtime's words, and once: a second try would say the same."""

    async def refuse(_sandbox: Control, _directory: Path) -> None:
        raise ControlFailed("loading: missing features: avx512f avx512bw")

    monkeypatch.setattr(Control, "restore", refuse)
    driver = drivers["gvisor"]
    with running(driver, rootfs, scratch / "source") as source:
        save(source, scratch / "saved")
        spec = make_spec(new_id(), rootfs, source.uplink.directory, checkpoint=scratch / "saved")
        with pytest.raises(UnsupportedCapability, match="this one lacks: avx512f avx512bw") as caught:
            asyncio.run(driver.start(spec))
        assert caught.value.details["reason"] == "other_processor"
        assert traces(spec.sandbox_id, roots) == NOTHING
        assert source.check("print('alive')") == "alive"


def test_a_runtime_that_hangs_is_bounded(
    drivers: dict[str, OciDriver], rootfs: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = drivers["gvisor"]
    monkeypatch.setattr("cloche_server.drivers._checkpoint.BOUND_S", 0.3)
    with running(driver, rootfs, scratch / "source") as source:
        kernel = int(driver._layout.of(source.id).pid.read_text())
        os.kill(kernel, signal.SIGSTOP)
        try:
            with pytest.raises(InternalError, match="took more than"):
                asyncio.run(driver.checkpoint(source.id, scratch / "saved", keep_running=True))
        finally:
            os.kill(kernel, signal.SIGCONT)
        assert not (scratch / "saved").exists()
        assert source.check("print('alive')") == "alive"


@pytest.mark.expected_logs("start 1 of sandbox")
@pytest.mark.parametrize(("number", "said"), [(signal.SIGSTOP, "no sandbox after"), (signal.SIGKILL, "went away")])
def test_a_runtime_that_hangs_or_dies_before_the_restore_is_a_failed_start(
    drivers: dict[str, OciDriver],
    roots: Path,
    rootfs: Path,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    said: str,
) -> None:
    driver, add_loopback = drivers["gvisor"], Control.add_loopback
    with running(driver, rootfs, scratch / "source") as source:
        save(source, scratch / "saved")
        spec = make_spec(new_id(), rootfs, source.uplink.directory, checkpoint=scratch / "saved")

        async def add_loopback_after_a_signal(control: Control) -> None:
            for pid in driver._cgroup(spec.sandbox_id).pids():
                with suppress(ProcessLookupError):  # it has gone with one that was killed before it
                    os.kill(pid, number)
            await add_loopback(control)

        async def start() -> None:
            async with asyncio.timeout(60):
                await driver.start(spec)

        monkeypatch.setattr(Control, "add_loopback", add_loopback_after_a_signal)
        monkeypatch.setattr("cloche_server.drivers._oci_driver.START_ATTEMPTS", 1)
        if number is signal.SIGSTOP:  # else the bound is for what runs, on a busy machine
            monkeypatch.setattr("cloche_server.drivers._start.RUNTIME_BOUND_S", 2.0)
        with pytest.raises(SandboxStartFailed, match=said):
            asyncio.run(start())
        assert traces(spec.sandbox_id, roots) == NOTHING


LONG_S = 60.0
"""Of a bound that must not be waited out; a removal takes 20 ms, and some seconds at the most on a busy machine."""


@pytest.mark.parametrize("delay_s", [0, 0.01, 0.03, 0.06])
def test_destroy_while_it_is_saved(
    driver: OciDriver, roots: Path, rootfs: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, delay_s: float
) -> None:
    monkeypatch.setattr("cloche_server.drivers._cgroup.FREEZE_BOUND_S", LONG_S)

    async def race() -> str:
        spec = make_spec(new_id(), rootfs, scratch)
        await driver.start(spec)
        saving = asyncio.create_task(driver.checkpoint(spec.sandbox_id, scratch / "saved", keep_running=True))
        await asyncio.sleep(delay_s)
        begun = time.monotonic()
        await driver.destroy(spec.sandbox_id)
        with suppress(SandboxNotRunning):
            await saving
            shutil.rmtree(scratch / "saved")
        assert time.monotonic() - begun < LONG_S / 2, "a cgroup that was removed was waited for to stand still"
        return spec.sandbox_id

    assert traces(asyncio.run(race()), roots) == NOTHING
    assert not (scratch / "saved").exists()


@pytest.mark.parametrize("delay_s", [0, 0.003, 0.01, 0.03])
def test_a_cancelled_save_leaves_the_source_and_nothing_else(source: Sandbox, scratch: Path, delay_s: float) -> None:
    async def cancel() -> None:
        saving = asyncio.create_task(source.driver.checkpoint(source.id, scratch / "saved", keep_running=True))
        await asyncio.sleep(delay_s)
        if saving.cancel():
            with pytest.raises(asyncio.CancelledError):
                await saving
            assert not (scratch / "saved").exists()

    asyncio.run(cancel())
    assert source.check("print('alive')") == "alive"
    assert asyncio.run(source.driver.inspect(source.id)).state is RunState.RUNNING


def test_the_record_names_the_driver(source: Sandbox, scratch: Path) -> None:
    done = save(source, scratch / "saved")
    record = json.loads((scratch / "saved" / "checkpoint.json").read_text())
    assert (record["driver"], record["memory"]) == (source.driver.name, done.memory)
    assert (scratch / "saved").stat().st_mode & 0o777 == 0o700
    assert set(done.files) == {file.name for file in (scratch / "saved").iterdir()}


def test_saving_many_small_files_takes_no_process_of_a_sandbox_near_its_limit(
    drivers: dict[str, OciDriver], rootfs: Path, scratch: Path
) -> None:
    """The user-space kernel writes down every file it knows, and needs memory for that: not out of the sandbox's own."""
    limits = Limits(memory_mb=192, max_processes=64, disk_mb=192)
    make = "import os\nfor i in range(16000):\n d = f'/workspace/{i // 100}'; os.makedirs(d, exist_ok=True)\n"
    make += " open(f'{d}/{i}', 'w').write('x')"
    with running(drivers["gvisor"], rootfs, scratch / "source", resources=limits) as source:
        source.check(make, timeout_s=60)
        for turn in range(2):
            save(source, scratch / f"saved-{turn}")
        assert asyncio.run(source.driver.oom_kills(source.id)) == 0
        with restored(source, rootfs, scratch / "copy", scratch / "saved-1", resources=limits) as copy:
            assert copy.check("print(open('/workspace/159/15999').read())") == "x"
            assert asyncio.run(copy.driver.oom_kills(copy.id)) == 0
