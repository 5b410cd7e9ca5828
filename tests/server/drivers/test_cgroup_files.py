"""Cgroup names and values, both versions, without a kernel."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from cloche_server.drivers._cgroup import SETTLE_ROOM_BYTES, WORK_BYTES, Cgroup
from cloche_server.drivers._cgroup_files import (
    EARLY_WEIGHT,
    NORMAL_WEIGHT,
    CgroupLayout,
    Controller,
    Freezer,
    Limits,
    Write,
    counted_in,
    cpu_seconds,
    find_layout,
    limit_writes,
    lower_memory_writes,
    raise_memory_writes,
    unreclaimable_bytes,
    weight_writes,
)

V1 = """\
20 1 254:0 / / rw - ext4 /dev/vda rw
30 20 0:30 / /sys/fs/cgroup rw - tmpfs tmpfs rw
31 30 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
32 30 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory
33 30 0:33 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
34 30 0:34 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
35 30 0:35 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
V1_FREEZER = "36 30 0:36 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer"
V2 = "26 25 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"

LIMITS = Limits(memory_bytes=512 << 20, pids=100, cpus=1.5)


def test_a_hybrid_machine_is_version_1_and_all_hierarchies_are_cleaned() -> None:
    layout = find_layout(V1, "hugetlb")
    assert layout.version == 1
    root = Path("/sys/fs/cgroup")
    names = ("cpu,cpuacct", "memory", "pids", "unified")
    joined = [root / name / "cloche/x" for name in names]
    assert sorted(layout.directories("cloche/x")) == joined
    assert set(layout.all_directories("cloche/x")) == {*joined, root / "systemd/cloche/x"}


def test_version_2_freezes_wherever_it_is_mounted() -> None:
    assert find_layout(V1, "hugetlb").freezer == Freezer(2, Path("/sys/fs/cgroup/unified"))
    assert find_layout(V2, "cpu memory pids").freezer == Freezer(2, Path("/sys/fs/cgroup"))


def test_version_1_freezes_where_it_is_alone() -> None:
    alone = V1.replace("35 30 0:35 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw", V1_FREEZER)
    assert find_layout(alone, "").freezer == Freezer(1, Path("/sys/fs/cgroup/freezer"))
    with pytest.raises(LookupError, match="freezer"):
        find_layout(alone.replace(V1_FREEZER + "\n", ""), "")


def test_frozen_is_told_from_freezing() -> None:
    v1, v2 = Freezer(1, Path("/")), Freezer(2, Path("/"))
    assert (v1.is_done("FREEZING\n"), v1.is_done("FROZEN\n"), v1.is_done("THAWED\n")) == (False, True, False)
    assert (v1.is_wanted("FREEZING\n"), v1.is_wanted("THAWED\n")) == (True, False)
    assert (v2.is_done("populated 1\nfrozen 1\n"), v2.is_done("populated 1\nfrozen 0\n")) == (True, False)
    assert (v2.is_wanted("1\n"), v2.is_wanted("0\n"), v2.is_wanted("")) == (True, False, False)


def test_version_2_is_used_when_it_has_the_controllers() -> None:
    layout = find_layout(V2, "cpuset cpu io memory pids")
    assert layout.version == 2
    assert layout.directories("cloche/x") == [Path("/sys/fs/cgroup/cloche/x")]
    assert find_layout(V1, "cpu memory pids").version == 2


def test_missing_controllers_are_named() -> None:
    with pytest.raises(LookupError, match="memory"):
        find_layout("\n".join(line for line in V1.splitlines() if "memory" not in line), "")


@pytest.mark.parametrize(
    ("version", "controller", "expected"),
    [
        (
            1,
            Controller.MEMORY,
            ["memory.limit_in_bytes=536870912", "memory.memsw.limit_in_bytes=536870912", "memory.swappiness=0"],
        ),
        (1, Controller.PIDS, ["pids.max=100"]),
        (1, Controller.CPU, ["cpu.cfs_period_us=100000", "cpu.cfs_quota_us=150000"]),
        (2, Controller.MEMORY, ["memory.max=536870912", "memory.swap.max=0"]),
        (2, Controller.PIDS, ["pids.max=100"]),
        (2, Controller.CPU, ["cpu.max=150000 100000"]),
    ],
)
def test_limits_as_writes(version: int, controller: Controller, expected: list[str]) -> None:
    assert [f"{w.file}={w.value}" for w in limit_writes(version, LIMITS)[controller]] == expected


def test_a_tiny_share_of_a_cpu_is_one_the_kernel_takes() -> None:
    writes = limit_writes(1, Limits(1 << 20, 1, 0.001))[Controller.CPU]
    assert writes[1].value == "1000"


def test_memory_is_raised_from_the_outer_limit_inwards() -> None:
    assert [w.file for w in raise_memory_writes(1, 5)] == ["memory.memsw.limit_in_bytes", "memory.limit_in_bytes"]
    assert [w.file for w in raise_memory_writes(2, 5)] == ["memory.max"]


def test_memory_is_lowered_from_the_inner_limit_outwards() -> None:
    assert [w.file for w in lower_memory_writes(1, 5)] == ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"]
    assert [w.file for w in lower_memory_writes(2, 5)] == ["memory.max"]


def test_the_page_cache_of_files_can_be_taken_back_and_shared_memory_cannot() -> None:
    stat = "cache 60\nrss 30\nshmem 10\ninactive_anon 40\nactive_file 20\ninactive_file 30\ntotal_active_file 20\n"
    assert unreclaimable_bytes(90, stat) == 40
    assert unreclaimable_bytes(90, "") == 90


@pytest.mark.parametrize(("weight", "shares"), [(NORMAL_WEIGHT, "1024"), (50, "512"), (EARLY_WEIGHT, "10")])
def test_version_one_counts_processor_weights_differently(weight: int, shares: str) -> None:
    assert weight_writes(1, weight) == [Write("cpu.shares", shares)]
    assert weight_writes(2, weight) == [Write("cpu.weight", str(weight))]


def test_a_limit_is_lowered_no_further_than_what_is_needed(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").touch()
    cgroup = Cgroup(CgroupLayout(2, dict.fromkeys(Controller, tmp_path), Freezer(2, tmp_path)), "x" * 20)
    cgroup.create(LIMITS)
    home = tmp_path / "cloche" / ("x" * 20)
    (home / "memory.stat").write_text("active_file 0\ninactive_file 0\n")
    for used, limit in ((1 << 20, 100 << 20), (200 << 20, (200 << 20) + SETTLE_ROOM_BYTES)):
        (home / "memory.current").write_text(str(used))
        with cgroup.extra_memory(100 << 20):
            assert int((home / "memory.max").read_text()) == (100 << 20) + WORK_BYTES
        assert int((home / "memory.max").read_text()) == limit


def test_counters_are_read_from_both_forms() -> None:
    assert counted_in("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "oom_kill") == 3
    assert counted_in("low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n", "oom_kill") == 1
    assert counted_in("", "oom_kill") == 0
    assert cpu_seconds(1, "2500000000\n") == 2.5
    assert cpu_seconds(2, "usage_usec 2500000\nuser_usec 1\n") == 2.5


def test_version_2_on_a_directory_tree(tmp_path: Path) -> None:
    """The writing side on plain files, for machines (like most CI) that have only the other version."""
    (tmp_path / "cgroup.subtree_control").touch()
    cgroup = Cgroup(CgroupLayout(2, dict.fromkeys(Controller, tmp_path), Freezer(2, tmp_path)), "x" * 20)
    cgroup.create(LIMITS)
    home = tmp_path / "cloche" / ("x" * 20)
    assert (home / "memory.max").read_text() == "536870912"
    assert not (home / "memory.swap.max").exists()  # optional, and this "kernel" has no swap accounting
    assert (tmp_path / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert cgroup.join_files == [home / "cgroup.procs"]
    for name, text in {
        "memory.current": "5",
        "memory.peak": "9",
        "cpu.stat": "usage_usec 3000000",
        "pids.current": "2",
    }.items():
        (home / name).write_text(text)
    (home / "memory.events").write_text("oom 1\noom_kill 4\n")
    (home / "cgroup.procs").write_text("11\n12\n")
    usage = cgroup.usage()
    assert usage is not None
    assert (usage.memory_bytes, usage.memory_peak_bytes, usage.cpu_seconds, usage.pids) == (5, 9, 3.0, 2)
    assert cgroup.oom_kills() == 4
    assert cgroup.pids() == {11, 12}


def test_a_cgroup_that_is_gone_measures_nothing(tmp_path: Path) -> None:
    cgroup = Cgroup(CgroupLayout(2, dict.fromkeys(Controller, tmp_path), Freezer(2, tmp_path)), "x" * 20)
    assert cgroup.usage() is None
    assert cgroup.oom_kills() == 0
    assert cgroup.pids() == set()
    assert cgroup.remove()


@pytest.mark.parametrize("way", ["removed", "thawed"])
def test_nobody_waits_for_a_cgroup_to_stand_still_that_is_being_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A delete in the moment in which a sandbox was frozen to be saved took the whole bound, five seconds."""
    monkeypatch.setattr("cloche_server.drivers._cgroup.FREEZE_BOUND_S", 60.0)
    cgroup = Cgroup(CgroupLayout(2, dict.fromkeys(Controller, tmp_path), Freezer(2, tmp_path)), "x" * 20)
    home = tmp_path / "cloche" / ("x" * 20)
    home.mkdir(parents=True)
    (home / "cgroup.events").write_text("populated 1\nfrozen 0\n")

    async def freeze_and_remove() -> None:
        freezing = asyncio.create_task(cgroup.freeze())
        while not cgroup.is_frozen():
            await asyncio.sleep(0)
        if way == "removed":
            shutil.rmtree(home)
        else:
            cgroup.thaw()
        with pytest.raises(FileNotFoundError):
            await asyncio.wait_for(freezing, 30)

    asyncio.run(freeze_and_remove())
    assert not cgroup.is_frozen()


def test_freezing_waits_until_all_stand_still(tmp_path: Path) -> None:
    cgroup = Cgroup(CgroupLayout(2, dict.fromkeys(Controller, tmp_path), Freezer(2, tmp_path)), "x" * 20)
    home = tmp_path / "cloche" / ("x" * 20)
    home.mkdir(parents=True)
    (home / "cgroup.events").write_text("populated 1\nfrozen 0\n")

    async def freeze_slowly() -> None:
        freezing = asyncio.create_task(cgroup.freeze())
        done, _ = await asyncio.wait([freezing], timeout=0.05)
        assert not done
        (home / "cgroup.events").write_text("populated 1\nfrozen 1\n")
        await asyncio.wait_for(freezing, 30)

    asyncio.run(freeze_slowly())
    assert cgroup.is_frozen()


def test_a_number_that_names_a_stranger_by_now_is_not_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look and the signal a process may end and its number be given to anybody on the host."""
    cgroup = Cgroup(CgroupLayout(2, dict.fromkeys(Controller, tmp_path), Freezer(2, tmp_path)), "x" * 20)
    inside, stranger = (subprocess.Popen(["sleep", "1000"]) for _ in range(2))
    seen = [{inside.pid, stranger.pid}]
    monkeypatch.setattr(
        cgroup, "pids", lambda: seen.pop() if seen else {inside.pid} if inside.poll() is None else set()
    )
    try:
        asyncio.run(cgroup.kill_all())
        assert inside.wait(60) == -signal.SIGKILL
        assert stranger.poll() is None
    finally:
        for process in (inside, stranger):
            process.kill()
            process.wait()
