"""One save of a sandbox, from the order to a directory that is whole and says what is in it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

from cloche.errors import ClocheError
from cloche_server.drivers._cgroup import Cgroup
from cloche_server.drivers._cgroup_files import MEBIBYTE
from cloche_server.drivers._checkpoint import (
    UNFINISHED,
    Record,
    check_absent,
    make_durable,
    new_directory,
    sizes_in,
    write_record,
)
from cloche_server.drivers._layout import Layout
from cloche_server.drivers._runtimes import Runtime, saves_memory
from cloche_server.drivers._saving import save_disk, save_memory, standing_still
from cloche_server.drivers._self_test import version_of
from cloche_server.drivers._start import find_binary
from cloche_server.drivers._watching import Watching


class CheckpointMaker:
    """Of the sandboxes of one driver. Methods return how long the sandbox stood still, in seconds."""

    def __init__(self, runtime: Runtime, layout: Layout, cgroup: Callable[[str], Cgroup], watching: Watching) -> None:
        self._runtime = runtime
        self._layout = layout
        self._cgroup = cgroup
        self._watching = watching
        self._known_version: tuple[tuple[int, int, int], str] = ((0, 0, 0), "")

    async def save(self, sandbox_id: str, directory: Path) -> float:
        """The sandbox goes on."""
        with new_directory(directory):
            return await self._save(sandbox_id, directory, keep_running=True)

    async def save_for_good(self, sandbox_id: str, directory: Path) -> float:
        """Afterwards it stands still. The directory gets its name when all of it is on the host's disk: whatever ends the
        server, or the machine, what has the name is whole."""
        check_absent(directory)
        paths, cgroup = self._layout.of(sandbox_id), self._cgroup(sandbox_id)
        unfinished = directory.with_name(directory.name + UNFINISHED)
        shutil.rmtree(unfinished, ignore_errors=True)
        with new_directory(unfinished):
            async with AsyncExitStack() as stack:
                if not saves_memory(self._runtime):  # what saves its own memory cannot stand still meanwhile
                    await stack.enter_async_context(standing_still(paths, cgroup, go_on=False))
                pause_s = await self._save(sandbox_id, unfinished, keep_running=False)
                if saves_memory(self._runtime):
                    await stack.enter_async_context(standing_still(paths, cgroup, go_on=False))
                await asyncio.to_thread(make_durable, unfinished)
                unfinished.rename(directory)
        return pause_s

    async def _save(self, sandbox_id: str, directory: Path, *, keep_running: bool) -> float:
        try:
            pause_s = await self._save_by_kind(sandbox_id, directory, keep_running=keep_running)
            await self._record(sandbox_id, directory)
        except (ClocheError, OSError):
            await self._watching.end_if_ending(sandbox_id)
            await self._watching.alive(sandbox_id)  # a sandbox that ended meanwhile is the better reason
            raise
        await self._watching.alive(sandbox_id)
        return pause_s

    async def _record(self, sandbox_id: str, directory: Path) -> None:
        paths = self._layout.of(sandbox_id)
        orders = json.loads(paths.orders.read_text())
        record = Record(
            driver=self._runtime.name,
            memory=saves_memory(self._runtime),
            disk_mb=orders["disk_bytes"] // MEBIBYTE,
            volumes=orders["volume_targets"],
            sizes=sizes_in(directory),
            runtime=orders.get("runtime_version") or await self.version(),  # an older server did not write it down
        )
        write_record(directory, record)

    async def version(self) -> str:
        """Of the runtime; empty when it does not tell. The binary may be replaced while the server runs."""
        stat = find_binary(self._runtime).stat()
        key = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if self._known_version[0] != key:
            self._known_version = (key, await version_of(self._runtime) or "")
        return self._known_version[1]

    async def _save_by_kind(self, sandbox_id: str, directory: Path, *, keep_running: bool) -> float:
        paths, cgroup = self._layout.of(sandbox_id), self._cgroup(sandbox_id)
        if saves_memory(self._runtime):
            return await save_memory(self._runtime, paths, cgroup, directory)
        return await save_disk(paths, cgroup, self._watching.pid(sandbox_id) or 0, directory, go_on=keep_running)
