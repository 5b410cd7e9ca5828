"""Paths, id ranges, exit records, the configuration, and which driver wins: plain function calls."""

from __future__ import annotations

import signal
from pathlib import Path, PurePosixPath

import pytest

from cloche.errors import DriverUnavailable
from cloche_server.drivers import (
    ExitReason,
    RunState,
    SandboxSpec,
    SelfTest,
    VolumeMount,
    open_drivers,
    pick_driver,
    report,
)
from cloche_server.drivers._exit_record import explain, load_exit, save_exit, status_of
from cloche_server.drivers._idmap import FIRST_ID, IDS_PER_SANDBOX, SLOTS, first_id, release_slots, take_slot
from cloche_server.drivers._launch_orders import Stage, pick_stage
from cloche_server.drivers._layout import Layout
from cloche_server.drivers._oci_spec import CAPABILITIES, Isolation, build_config, build_environment
from cloche_server.drivers._runtimes import Gvisor, Runc, Runtime
from cloche_server.drivers._self_test import kernel_version

from .harness import make_spec

ID = "abcdefghij0123456789"


def spec(**changes: object) -> SandboxSpec:
    return make_spec(ID, Path("/image"), Path("/uplink"), **changes)


@pytest.mark.parametrize("bad", ["", "short", "A" * 20, "../../../etc/passwd0", "a" * 21, "aaaaaaaaaaaaaaaaaaa\n"])
def test_an_id_is_a_name_and_never_a_path(bad: str) -> None:
    with pytest.raises(ValueError, match="not a sandbox id"):
        SandboxSpec(bad, "e", Path("/"), spec().resources, Path("/"))


# -- ranges of ids


def test_a_range_is_kept_and_given_back(tmp_path: Path) -> None:
    slot = take_slot(tmp_path / "ids", ID)
    assert take_slot(tmp_path / "ids", ID) == slot
    release_slots(tmp_path / "ids", ID)
    release_slots(tmp_path / "ids", ID)
    assert list((tmp_path / "ids").iterdir()) == []


def test_no_two_sandboxes_share_a_range(tmp_path: Path) -> None:
    slots = [take_slot(tmp_path, f"{number:020}") for number in range(300)]
    assert len(set(slots)) == 300


def test_ranges_do_not_overlap_and_fit_a_signed_int() -> None:
    assert first_id(1) - first_id(0) == IDS_PER_SANDBOX
    assert first_id(SLOTS - 1) + IDS_PER_SANDBOX <= 2**31 - 1
    assert FIRST_ID > 0x6FFF_FFFF


def test_a_full_machine_is_said_to_be_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloche_server.drivers._idmap.SLOTS", 2)
    for number in range(2):
        take_slot(tmp_path, f"{number:020}")
    with pytest.raises(LookupError, match="in use"):
        take_slot(tmp_path, ID)


# -- how it ended


@pytest.mark.parametrize(
    ("wait_status", "oom_kills", "reason", "exit_code", "number"),
    [
        (7 << 8, 0, ExitReason.EXIT, 7, None),
        (7 << 8, 2, ExitReason.EXIT, 7, None),
        (signal.SIGKILL, 0, ExitReason.SIGNAL, None, 9),
        (signal.SIGKILL, 1, ExitReason.OUT_OF_MEMORY, None, 9),
        (137 << 8, 1, ExitReason.OUT_OF_MEMORY, None, 9),
        (137 << 8, 0, ExitReason.EXIT, 137, None),
        (signal.SIGSEGV, 1, ExitReason.SIGNAL, None, 11),
        (None, 0, ExitReason.LOST, None, None),
        (None, 1, ExitReason.OUT_OF_MEMORY, None, None),
    ],
)
def test_the_reason_is_never_invented(
    wait_status: int | None, oom_kills: int, reason: ExitReason, exit_code: int | None, number: int | None
) -> None:
    status = status_of(wait_status, oom_kills, "")
    assert (status.state, status.reason, status.exit_code, status.signal) == (
        RunState.EXITED,
        reason,
        exit_code,
        number,
    )
    assert explain(status)


def test_the_reason_is_kept_for_later_servers(tmp_path: Path) -> None:
    paths = Layout(tmp_path, tmp_path, "runc").of(ID)
    status = status_of(signal.SIGKILL, 1, "last words")
    save_exit(paths, status)  # nothing to keep it in: it is being removed
    assert load_exit(paths) is None
    paths.home.mkdir(parents=True)
    save_exit(paths, status)
    assert load_exit(paths) == status


# -- configuration


def isolation(**changes: object) -> Isolation:
    values: dict[str, object] = {
        "root": "/mnt/root",
        "first_id": 0x7000_0000,
        "seccomp": None,
        "cgroup_path": "/cloche/x",
        "tmp_in_memory": False,
    }
    return Isolation(**(values | changes))  # type: ignore[arg-type]


def test_the_stage_hides_nothing_that_is_needed() -> None:
    assert pick_stage([PurePosixPath("/var/lib/cloche")]).directory == "/mnt"
    assert pick_stage([PurePosixPath("/mnt/big/cloche")]).directory == "/media"
    with pytest.raises(LookupError):
        pick_stage([PurePosixPath(p) for p in ("/mnt/a", "/media/b", "/srv/c", "/opt/d")])


def test_every_namespace_is_the_sandboxs_own() -> None:
    config = build_config(spec(), Stage("/mnt"), isolation())
    linux = config["linux"]
    assert isinstance(linux, dict)
    assert isinstance(linux["namespaces"], list)
    assert linux["namespaces"] == [{"type": t} for t in ("pid", "ipc", "uts", "mount", "network", "user", "cgroup")]


def test_only_the_uplink_comes_from_the_host_and_it_is_read_only() -> None:
    mounts = build_config(spec(), Stage("/mnt"), isolation())["mounts"]
    assert isinstance(mounts, list)
    bound = [m for m in mounts if isinstance(m, dict) and str(m["source"]).startswith("/")]
    assert [(m["destination"], m["source"]) for m in bound] == [("/run/cloche", "/mnt/uplink")]
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(bound[0]["options"])  # type: ignore[arg-type]


def test_capabilities_are_the_documented_ones_and_none_are_inheritable() -> None:
    process = build_config(spec(), Stage("/mnt"), isolation())["process"]
    assert isinstance(process, dict)
    assert process["capabilities"] == {name: sorted(CAPABILITIES) for name in ("bounding", "effective", "permitted")}


@pytest.mark.parametrize("sudo", [True, False])
def test_nothing_gains_privileges_by_exec(sudo: bool) -> None:
    process = build_config(spec(sudo=sudo), Stage("/mnt"), isolation())["process"]
    assert isinstance(process, dict)
    assert process["noNewPrivileges"] is True


def test_the_guests_variables_win_over_the_images() -> None:
    environment = build_environment(
        spec(image_env={"A": "1", "PATH": "/x"}, guest_env={"A": "2"}), {"A": "0", "B": "3"}
    )
    assert environment == ["PATH=/x", "A=2", "B=3"]


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0y")])
def test_a_variable_that_c_cannot_carry_is_refused(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="environment"):
        build_environment(spec(guest_env={name: value}), {})


# -- which driver

GOOD = SelfTest("gvisor", "user-space kernel", works=True)
WEAK = SelfTest("runc", "namespaces", works=True)
BROKEN = SelfTest("gvisor", "user-space kernel", works=False, why_not="no runtime", how_to_fix="install it")


def test_the_strongest_that_works_wins() -> None:
    assert pick_driver([WEAK, GOOD]) == "gvisor"
    assert pick_driver([BROKEN, WEAK]) == "runc"


def test_a_driver_asked_for_is_used_or_refused_and_never_replaced() -> None:
    assert pick_driver([GOOD, WEAK], "runc") == "runc"
    with pytest.raises(DriverUnavailable, match="no runtime") as caught:
        pick_driver([BROKEN, WEAK], "gvisor")
    assert caught.value.hint == "install it"
    with pytest.raises(DriverUnavailable, match="no driver 'qemu'"):
        pick_driver([GOOD], "qemu")


def test_when_none_works_each_says_why() -> None:
    with pytest.raises(DriverUnavailable) as caught:
        pick_driver([BROKEN])
    assert "no runtime (install it)" in str(caught.value.hint)


def test_a_report_says_what_to_do() -> None:
    assert report(BROKEN).how_to_fix == "install it"


async def test_a_missing_runtime_is_told_by_the_self_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloche_server.drivers._runtimes._which", lambda _: None)
    monkeypatch.setattr("cloche_server.drivers._runtimes.PINNED_RUNSC", tmp_path / "none")
    results = [await driver.self_test() for driver in open_drivers(tmp_path, tmp_path).values()]
    assert [(r.driver, r.works, r.why_not) for r in results] == [
        ("gvisor", False, "its runtime is not installed"),
        ("runc", False, "its runtime is not installed"),
    ]
    assert "apt-get install runc" in str(results[1].how_to_fix)


@pytest.mark.expected_logs("start . of sandbox")
async def test_a_broken_runtime_is_told_with_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "runtime"
    broken.write_text("#!/bin/sh\necho 'this kernel is too odd' >&2\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("CLOCHE_RUNC", str(broken))
    result = await open_drivers(tmp_path, tmp_path)["runc"].self_test()
    assert not result.works
    assert "this kernel is too odd" in str(result.why_not)
    assert result.how_to_fix


@pytest.mark.parametrize(
    ("release", "version"), [("6.18.44-fc", (6, 18)), ("5.10.0-8-amd64", (5, 10)), ("5.19", (5, 19)), ("odd", (0, 0))]
)
def test_the_kernels_version_is_read_as_numbers(release: str, version: tuple[int, int]) -> None:
    assert kernel_version(release) == version


async def test_a_kernel_without_overlay_over_shifted_ids_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloche_server.drivers._self_test.IDMAPPED_OVERLAY", (999, 0))
    drivers = open_drivers(tmp_path, tmp_path)
    result = await drivers["runc"].self_test()
    assert "id-mapped mounts" in str(result.why_not)
    assert "999.0 or later" in str(result.how_to_fix)
    assert (await drivers["gvisor"].self_test()).works


@pytest.mark.parametrize("runtime", [Gvisor(), Runc()])
def test_volumes_are_bound_without_devices_and_in_the_order_in_which_they_nest(runtime: Runtime) -> None:
    inner, outer = VolumeMount(Path("/v/1"), "/workspace/a/b", True), VolumeMount(Path("/v/2"), "/workspace/a")
    wanted = spec(volumes=[inner, outer])
    config = build_config(wanted, Stage("/mnt"), runtime.isolation_for(wanted, Stage("/mnt"), 7, "/cloche/x"))
    volumes = [m for m in config["mounts"] if "/mnt/volume-" in str(m)]  # type: ignore[union-attr]
    assert [(m["destination"], m["source"], m["options"]) for m in volumes] == [  # type: ignore[index,call-overload]
        ("/workspace/a", "/mnt/volume-0", ["bind", "rw", "nosuid", "nodev"]),
        ("/workspace/a/b", "/mnt/volume-1", ["bind", "ro", "nosuid", "nodev"]),
    ]


async def test_both_drivers_pass_their_self_test_here(drivers: dict[str, object], rootfs: Path) -> None:
    for driver in drivers.values():
        result = await driver.self_test()  # type: ignore[attr-defined]
        assert result.works, result
        assert result.version
        assert 0 < result.start_seconds < 20
        assert await driver.list() == [] or ID not in await driver.list()  # type: ignore[attr-defined]
