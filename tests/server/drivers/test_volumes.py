"""Host directories that several sandboxes share, whatever their driver."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cloche.errors import Conflict, InvalidRequest, SandboxStartFailed
from cloche_server.drivers import OciDriver, SandboxSpec, VolumeMount

from .harness import Sandbox, make_spec, new_id, running
from .test_checkpoint import save

TARGET = "/workspace/data"


@pytest.fixture
def volume(scratch: Path) -> Path:
    """A directory that the account ``user`` of every image may write to."""
    directory = scratch / "volume"
    directory.mkdir()
    os.chown(directory, 1000, 1000)
    return directory


@contextmanager
def mounted(
    driver: OciDriver, rootfs: Path, uplink: Path, volume: Path, *, read_only: bool = False, **changes: object
) -> Iterator[Sandbox]:
    mounts = [VolumeMount(volume, TARGET, read_only)]
    with running(driver, rootfs, uplink, volumes=mounts, **changes) as sandbox:
        yield sandbox


READ = f"print(open('{TARGET}/f').read())"


def write(text: str) -> str:
    return f"open('{TARGET}/f', 'w').write({text!r})"


@pytest.mark.parametrize("other", ["gvisor", "runc"])
def test_each_sees_what_the_others_write_and_owners_are_the_same(
    driver: OciDriver, other: str, drivers: dict[str, OciDriver], rootfs: Path, scratch: Path, volume: Path
) -> None:
    with ExitStack() as stack:
        one = stack.enter_context(mounted(driver, rootfs, scratch / "one", volume))
        two = stack.enter_context(mounted(drivers[other], rootfs, scratch / "two", volume))
        one.check(write("one"), user=True)
        assert two.check(READ, user=True) == "one"
        two.check(write("two"), user=True)  # of the same length: no size gives it away
        assert one.check(READ, user=True) == "two"
        for sandbox in (one, two):
            owner = f"import os; s = os.stat('{TARGET}/f'); print(s.st_uid, s.st_gid)"
            assert sandbox.check(owner) == "1000 1000"
        two.check(f"import os; os.mkdir('{TARGET}/d'); os.rename('{TARGET}/f', '{TARGET}/d/g')", user=True)
        assert one.check(f"import os; print(os.listdir('{TARGET}'), os.listdir('{TARGET}/d'))") == "['d'] ['g']"
    assert (volume / "d" / "g").read_text() == "two"
    assert (volume / "d" / "g").stat().st_uid == 1000


def test_many_lines_of_two_writers_all_arrive(driver: OciDriver, rootfs: Path, scratch: Path, volume: Path) -> None:
    with ExitStack() as stack:
        writers = [stack.enter_context(mounted(driver, rootfs, scratch / f"{i}", volume)) for i in range(2)]
        for turn in range(5):
            for writer in writers:
                writer.check(f"open('{TARGET}/log', 'a').write('{turn} ')", user=True)
        for writer in writers:
            assert writer.check(f"print(open('{TARGET}/log').read())") == "0 0 1 1 2 2 3 3 4 4"


def test_read_only_is_read_only_also_for_root(driver: OciDriver, rootfs: Path, scratch: Path, volume: Path) -> None:
    (volume / "f").write_text("there")
    os.chmod(volume / "f", 0o666)
    attempt = f"""
import errno, os
for what in (lambda: open('{TARGET}/f', 'w'), lambda: os.mkdir('{TARGET}/d'), lambda: os.remove('{TARGET}/f')):
    try: what(); print('done')
    except OSError as error: print(errno.errorcode[error.errno])
"""
    with mounted(driver, rootfs, scratch / "one", volume, read_only=True) as sandbox:
        assert sandbox.check(READ) == "there"
        assert sandbox.check(attempt).split() == ["EROFS"] * 3
    assert (volume / "f").read_text() == "there"
    with mounted(driver, rootfs, scratch / "one", volume) as sandbox:
        assert sandbox.check(attempt).split() == ["done"] * 3


def test_devices_and_set_user_id_programs_have_no_effect(
    driver: OciDriver, rootfs: Path, scratch: Path, volume: Path
) -> None:
    os.mknod(volume / "zero", 0o20666, os.makedev(1, 5))
    (volume / "id").write_bytes(Path("/usr/bin/id").read_bytes())
    os.chmod(volume / "id", 0o4755)
    with mounted(driver, rootfs, scratch / "one", volume) as sandbox:
        read = f"try: open('{TARGET}/zero', 'rb').read(1); print('read')\nexcept OSError: print('refused')"
        assert sandbox.check(read, user=True) == "refused"
        run = f"import subprocess; print(subprocess.check_output(['{TARGET}/id', '-u'], text=True))"
        assert sandbox.check(run, user=True) == "1000"


def test_a_link_in_a_volume_leads_nowhere_outside(driver: OciDriver, rootfs: Path, scratch: Path, volume: Path) -> None:
    (scratch / "secret").write_text("of the host")
    (volume / "absolute").symlink_to(scratch / "secret")
    (volume / "relative").symlink_to("../secret")
    (volume / "inside").symlink_to("f")
    (volume / "f").write_text("mine")
    with mounted(driver, rootfs, scratch / "one", volume) as sandbox:
        for name in ("absolute", "relative"):
            look = f"try: print(open('{TARGET}/{name}').read())\nexcept OSError: print('nothing')"
            assert sandbox.check(look) == "nothing"
        assert sandbox.check(f"print(open('{TARGET}/inside').read())") == "mine"


def test_a_volume_is_not_part_of_a_checkpoint(driver: OciDriver, rootfs: Path, scratch: Path, volume: Path) -> None:
    with mounted(driver, rootfs, scratch / "source", volume) as source:
        source.check(write("before") + "; open('/workspace/own', 'w').write('own')", user=True)
        save(source, scratch / "saved")
        source.check(write("after"), user=True)
        source.check(f"import os; open('{TARGET}/late', 'w').close(); os.mkdir('{TARGET}/d')", user=True)
        mounts = [VolumeMount(volume, TARGET)]
        with running(driver, rootfs, scratch / "copy", volumes=mounts, checkpoint=scratch / "saved") as copy:
            assert copy.check(READ) == "after"
            assert copy.check("print(open('/workspace/own').read())") == "own"
            assert copy.check(f"import os; print(sorted(os.listdir('{TARGET}')))") == "['d', 'f', 'late']"
            copy.check(write("copy"), user=True)
            assert source.check(READ) == "copy"


def test_a_file_that_was_looked_at_may_be_gone_when_memory_comes_back(
    drivers: dict[str, OciDriver], rootfs: Path, scratch: Path, volume: Path
) -> None:
    for name in ("f", "g"):
        (volume / name).write_text("there")
    with mounted(drivers["gvisor"], rootfs, scratch / "source", volume) as source:
        source.check(f"import os; [open('{TARGET}/{{}}'.format(n)).read() for n in 'fg']; os.listdir('{TARGET}')")
        save(source, scratch / "saved", keep_running=False)
        (volume / "g").unlink()
        (volume / "f").write_text("longer than before")
        mounts = [VolumeMount(volume, TARGET)]
        spec = make_spec(source.id, rootfs, source.uplink.directory, volumes=mounts, checkpoint=scratch / "saved")
        asyncio.run(source.driver.start(spec))
        assert source.check(f"import os; print(os.listdir('{TARGET}'))") == "['f']"
        assert source.check(READ) == "longer than before"


HOLD = f"""
import os, time
if os.fork() == 0:
    os.setsid()
    for fd in range(3): os.close(fd)
    held = open('{TARGET}/f')
    {{then}}
    open('/dev/shm/held', 'w').close()
    while True: time.sleep(1)
while not os.path.exists('/dev/shm/held'): time.sleep(0.01)
"""


@pytest.mark.expected_logs("start . of sandbox")
def test_a_removed_file_that_is_open_is_told(
    drivers: dict[str, OciDriver], rootfs: Path, scratch: Path, volume: Path
) -> None:
    """The pinned runsc opens the files of volumes by their names again. One that has its name is no problem."""
    (volume / "f").write_text("there")
    with mounted(drivers["gvisor"], rootfs, scratch / "source", volume) as source:
        source.check(HOLD.format(then="pass"))
        assert save(source, scratch / "saved").memory
        (volume / "f").unlink()
        spec = make_spec(new_id(), rootfs, scratch, volumes=[VolumeMount(volume, TARGET)], checkpoint=scratch / "saved")
        with pytest.raises(SandboxStartFailed, match="no such file"):
            asyncio.run(source.driver.start(spec))
    (volume / "f").write_text("there")
    with mounted(drivers["gvisor"], rootfs, scratch / "other", volume) as other:
        other.check(HOLD.format(then=f"os.unlink('{TARGET}/f')"))
        with pytest.raises(Conflict, match="removed"):
            save(other, scratch / "never")
        assert other.check("print('alive')") == "alive"


def test_memory_comes_back_only_with_the_same_targets(
    drivers: dict[str, OciDriver], rootfs: Path, scratch: Path, volume: Path
) -> None:
    gvisor = drivers["gvisor"]
    with mounted(gvisor, rootfs, scratch / "source", volume) as source:
        save(source, scratch / "saved")
    for mounts in ([], [VolumeMount(volume, "/workspace/elsewhere")]):
        spec = make_spec(new_id(), rootfs, scratch, volumes=mounts, checkpoint=scratch / "saved")
        with pytest.raises(InvalidRequest, match=TARGET):
            asyncio.run(gvisor.start(spec))


@pytest.mark.parametrize(
    "target", ["relative", "/", "/a/../b", "/a//b", "/proc", "/etc/x", "/usr", "/run/cloche", "/a\0b"]
)
def test_places_where_no_volume_can_be(target: str) -> None:
    with pytest.raises(ValueError, match=r"volume|path"):
        VolumeMount(Path("/x"), target)


def test_two_volumes_at_one_place(rootfs: Path, scratch: Path) -> None:
    mounts = [VolumeMount(scratch, TARGET), VolumeMount(scratch, TARGET)]
    with pytest.raises(ValueError, match="two volumes"):
        make_spec(new_id(), rootfs, scratch, volumes=mounts)
    assert isinstance(make_spec(new_id(), rootfs, scratch, volumes=mounts[:1]), SandboxSpec)
