"""One attempt to start a sandbox, up to the moment when the runtime says that it runs. Cleaning up is the caller's."""

from __future__ import annotations

import asyncio
import json
import os
import resource
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from cloche.errors import DriverUnavailable, InvalidRequest
from cloche_server.drivers import _idmap
from cloche_server.drivers._base import UPLINK_MOUNT, SandboxSpec, WhenSaved
from cloche_server.drivers._cgroup import WORK_BYTES, Cgroup
from cloche_server.drivers._cgroup_files import EARLY_WEIGHT, MEBIBYTE, NORMAL_WEIGHT
from cloche_server.drivers._checkpoint import BOUND_PER_GIB_S, DISK, read_record
from cloche_server.drivers._console import read_console, until_complete
from cloche_server.drivers._control import ControlFailed, controlling, until_listening
from cloche_server.drivers._launch_orders import LaunchOrders, pick_stage
from cloche_server.drivers._launching import LauncherAhead, end_of
from cloche_server.drivers._layout import Layout, SandboxPaths
from cloche_server.drivers._made_by import check_runtime
from cloche_server.drivers._oci_spec import OPEN_FILES, build_config
from cloche_server.drivers._runtimes import Runtime, saves_memory

RUNTIME_BOUND_S: Final = 20.0
"""For the runtime's command. Measured: 0.1 to 0.4 s; a machine that is busy with other starts needs seconds."""

STEP_BACK_S: Final = 1.0
"""A save of 100 MB takes 0.2 s."""

KERNEL_STATE: Final = "checkpoint.img"
RESTORE_BOUND_PER_STATE_MB_S: Final = 2.0
"""The state of gVisor's kernel. Measured: 1.7 s of processor time for 59 MB (50,000 files of the sandbox's own); the rest is
for a busy machine."""


class AttemptFailed(Exception):
    """One attempt; the message is for people, ``output`` is the console."""

    def __init__(self, message: str, output: str) -> None:
        super().__init__(message)
        self.output = output


async def start_once(
    spec: SandboxSpec,
    runtime: Runtime,
    version: str,
    layout: Layout,
    cgroup: Cgroup,
    ahead: LauncherAhead,
    saved: WhenSaved | None = None,
) -> None:
    """``version`` is the runtime's. `AttemptFailed`, or `OSError`, `LookupError` or `ValueError` from the preparations, or what
    ``saved`` raises."""
    with_memory = spec.checkpoint is not None and saves_memory(runtime)
    if saved is not None and not with_memory:
        await asyncio.shield(saved)
        check_checkpoint(spec, runtime, version)
    make_directories(layout, layout.of(spec.sandbox_id))
    cgroup.create(runtime.host_limits(spec.resources))
    write_orders(spec, runtime, version, layout, cgroup)
    paths = layout.of(spec.sandbox_id)
    if with_memory:
        await _start_with_memory(spec, runtime, version, paths, cgroup, ahead, saved or _saved_long_ago())
        ahead.make_soon()
    else:
        await _launch(ahead, paths, cgroup, runtime_bound_s(spec))
        cgroup.raise_memory(memory_limit(spec, runtime))


async def _start_with_memory(
    spec: SandboxSpec,
    runtime: Runtime,
    version: str,
    paths: SandboxPaths,
    cgroup: Cgroup,
    ahead: LauncherAhead,
    saved: WhenSaved,
) -> None:
    """All of it but its processes is made at once, also before everything is saved. The runtime's command needs 15 ms to end
    after that, which are not waited for. A runtime tells its guest the limit it finds when it starts, so the allowance for itself
    comes later; but a guest that filled its memory before it was saved needs it while it is restored."""
    limit, control = memory_limit(spec, runtime), runtime.control(paths)
    making = asyncio.create_task(_launch(ahead, paths, cgroup, RUNTIME_BOUND_S))
    try:
        with _stepping_back(cgroup, saved):
            await until_listening(control, making)
        cgroup.raise_memory(limit + WORK_BYTES)
        async with controlling(control) as sandbox:
            await _obeyed(RUNTIME_BOUND_S, sandbox.add_loopback(), paths)
            await asyncio.wait((saved, making), return_when=asyncio.FIRST_COMPLETED)
            if making.done():
                await making  # what fails in its last steps is not waited for
            await asyncio.shield(saved)
            check_checkpoint(spec, runtime, version)
            assert spec.checkpoint is not None
            await _obeyed(runtime_bound_s(spec), sandbox.restore(spec.checkpoint), paths)
        await making
    finally:
        making.cancel()
        await asyncio.gather(making, return_exceptions=True)
    cgroup.settle_memory(limit)


async def _obeyed(bound_s: float, order: Awaitable[None], paths: SandboxPaths) -> None:
    """`AttemptFailed` when the runtime refuses it, goes away, or does not answer."""
    try:
        async with asyncio.timeout(bound_s):
            await order
    except TimeoutError:
        raise AttemptFailed(f"no sandbox after {bound_s:.0f} s", read_console(paths)) from None
    except ControlFailed as failure:
        raise AttemptFailed("the runtime could not restore it", str(failure)) from failure


def _saved_long_ago() -> WhenSaved:
    done: WhenSaved = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


@contextmanager
def _stepping_back(cgroup: Cgroup, saved: WhenSaved) -> Iterator[None]:
    """Beside a sandbox that stands still until it is saved, which gets the processors first. Not for long: where all
    processors are busy, so little is nothing, and a start has its bounds."""

    def normal(_: object = None) -> None:
        with suppress(OSError):  # it was destroyed meanwhile
            cgroup.weigh(NORMAL_WEIGHT)

    cgroup.weigh(EARLY_WEIGHT)
    timer = asyncio.get_running_loop().call_later(STEP_BACK_S, normal)
    saved.add_done_callback(normal)
    try:
        yield
    finally:
        timer.cancel()
        saved.remove_done_callback(normal)
        normal()


def memory_limit(spec: SandboxSpec, runtime: Runtime) -> int:
    """Of the cgroup of a running sandbox."""
    return spec.resources.memory_mb * MEBIBYTE + runtime.overhead_bytes(spec.resources)


def runtime_bound_s(spec: SandboxSpec) -> float:
    """For the runtime's command: `RUNTIME_BOUND_S`, and more for what a checkpoint holds."""
    if spec.checkpoint is None:
        return RUNTIME_BOUND_S
    sizes = {file.name: file.stat().st_size for file in spec.checkpoint.iterdir()}
    state_mb, all_gib = sizes.get(KERNEL_STATE, 0) / MEBIBYTE, sum(sizes.values()) / (1024 * MEBIBYTE)
    return RUNTIME_BOUND_S + RESTORE_BOUND_PER_STATE_MB_S * state_mb + BOUND_PER_GIB_S * all_gib


def make_directories(layout: Layout, paths: SandboxPaths) -> None:
    """All private to root: nothing inside a sandbox reaches them by path."""
    for directory in (layout.homes, layout.disks, paths.home, paths.bundle, paths.runtime):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)


def write_orders(spec: SandboxSpec, runtime: Runtime, version: str, layout: Layout, cgroup: Cgroup) -> None:
    """The bundle's configuration and the launcher's orders. Takes a range of ids when the runtime needs one."""
    paths = layout.of(spec.sandbox_id)
    binary = find_binary(runtime)
    rootfs, uplink = spec.rootfs.resolve(strict=True), spec.uplink_directory.resolve(strict=True)
    if not (rootfs / UPLINK_MOUNT.lstrip("/")).is_dir():
        raise LookupError(f"the image has no directory {UPLINK_MOUNT}: {rootfs}")
    stage = pick_stage([paths.home, paths.disk, binary, *([spec.checkpoint] if spec.checkpoint else [])])
    first_id = _first_id(runtime, layout, spec.sandbox_id)
    isolation = replace(
        runtime.isolation_for(spec, stage, first_id, cgroup.oci_path),
        open_files=min(OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        memory_events=str(cgroup.memory_events) if runtime.shares_kernel else None,
    )
    orders = LaunchOrders(
        join_files=[str(file) for file in cgroup.join_files],
        stage=stage.directory,
        disk=str(paths.disk),
        disk_bytes=spec.resources.disk_mb * MEBIBYTE,
        blank_disk=str(layout.blank_disk(spec.resources.disk_mb * MEBIBYTE)),
        rootfs=str(rootfs),
        uplink=str(uplink),
        console=str(paths.console),
        first_id=first_id,
        memory_bytes=memory_limit(spec, runtime),
        argv=runtime.argv(binary, paths, stage, spec),
        disk_source=saved_disk(spec),
        timer_slack_ns=runtime.timer_slack_ns,
        runtime_version=version,
        volume_targets=[volume.target for volume in spec.volumes_in_order],
        volumes=[(str(volume.source.resolve(strict=True)), volume.read_only) for volume in spec.volumes_in_order],
    )
    _write_private(paths.bundle / "config.json", json.dumps(build_config(spec, stage, isolation)))
    _write_private(paths.orders, orders.to_json())


def check_checkpoint(spec: SandboxSpec, runtime: Runtime, version: str) -> None:
    """`InvalidRequest` when ``spec.checkpoint`` cannot be started by this runtime as ``spec`` wants it, `UnsupportedCapability`
    when it is not of this ``version``."""
    assert spec.checkpoint is not None
    record = read_record(spec.checkpoint)
    if record.driver != runtime.name:
        raise InvalidRequest(f"the checkpoint is of driver {record.driver}, not {runtime.name}")
    if record.disk_mb != spec.resources.disk_mb:
        raise InvalidRequest(f"the checkpoint has a disk of {record.disk_mb} MiB, not {spec.resources.disk_mb}")
    wanted = [volume.target for volume in spec.volumes_in_order]
    if record.memory and wanted != record.volumes:
        places = [", ".join(targets) or "none" for targets in (record.volumes, wanted)]
        raise InvalidRequest(f"the checkpoint has volumes at {places[0]}; asked for: {places[1]}")
    check_runtime(record, version)


def saved_disk(spec: SandboxSpec) -> str | None:
    """Where the checkpoint has files without memory."""
    if spec.checkpoint is None or not (spec.checkpoint / DISK).exists():
        return None
    return str(spec.checkpoint / DISK)


def find_binary(runtime: Runtime) -> Path:
    binary = runtime.find()
    if binary is None:
        raise DriverUnavailable(f"{runtime.name}: no runtime binary", hint=runtime.how_to_get)
    return binary


def _first_id(runtime: Runtime, layout: Layout, sandbox_id: str) -> int | None:
    if not runtime.shares_kernel:
        return None
    return _idmap.first_id(_idmap.take_slot(layout.id_slots, sandbox_id))


async def _launch(ahead: LauncherAhead, paths: SandboxPaths, cgroup: Cgroup, bound_s: float) -> None:
    """Run the launcher, which becomes the runtime's command; that ends when the sandbox runs."""
    try:
        async with asyncio.timeout(bound_s):
            code = await end_of(ahead.launch(paths))
    except TimeoutError:
        raise AttemptFailed(f"no sandbox after {bound_s:.0f} s", read_console(paths)) from None
    if code != 0:
        await until_complete(cgroup)
        raise AttemptFailed(f"the runtime ended with {code}", read_console(paths))


def _write_private(path: Path, text: str) -> None:
    """0600 from the first moment: the environment in it may hold secrets."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        file.write(text)
