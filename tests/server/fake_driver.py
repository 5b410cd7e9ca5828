"""A driver of the tests: its sandboxes are `FakeGuest`s in this process, and it fails on demand."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cloche.errors import NotFound, SandboxNotRunning, SandboxStartFailed
from cloche_server.drivers._base import (
    Checkpoint,
    ExitReason,
    Probe,
    RunState,
    SandboxSpec,
    SandboxStatus,
    SelfTest,
    Usage,
    WhenSaved,
)

from .fake_guest import FakeGuest, Raw

CHECKPOINT_FILE = "checkpoint.json"


@dataclass
class FakeDriver:
    """``start_error`` is raised by every start, ``checkpoint_error`` by every checkpoint; ``no_guest`` starts sandboxes
    that never dial, which a start notices after ``hello_bound_s``. A checkpoint is one small file with the guest's hello,
    and whether it has memory follows from the capabilities; a start from it with memory says that hello again, as a
    restored guest does."""

    name: str = "runc"
    isolation: str = "none, a fake"
    capabilities: frozenset[str] = frozenset({"pause", "memory_snapshot", "file_snapshot", "volumes"})
    works: bool = True
    start_error: Exception | None = None
    checkpoint_error: Exception | None = None
    checkpoints: list[tuple[str, Path, bool]] = field(default_factory=list)
    paused: set[str] = field(default_factory=set)
    dying: set[str] = field(default_factory=set)
    disk_bytes: int = 0
    ahead: list[str] = field(default_factory=list)
    """Whose start was to wait for its checkpoint."""
    may_save: asyncio.Event | None = None
    """What a checkpoint waits for."""
    no_guest: bool = False
    hello_bound_s: float = 30
    raw: Raw | None = None
    guests: dict[str, FakeGuest] = field(default_factory=dict)
    specs: dict[str, SandboxSpec] = field(default_factory=dict)
    ends: dict[str, asyncio.Future[SandboxStatus]] = field(default_factory=dict)
    destroyed: list[str] = field(default_factory=list)
    destroy_hangs: bool = False

    async def self_test(self) -> SelfTest:
        why = None if self.works else "it is broken on purpose"
        return SelfTest(self.name, self.isolation, self.works, "1", self.capabilities, why, why and "repair it")

    async def start(self, spec: SandboxSpec, probe: Probe | None = None, saved: WhenSaved | None = None) -> None:
        if saved is not None:
            self.ahead.append(spec.sandbox_id)
            await asyncio.shield(saved)
        if self.start_error is not None:
            raise self.start_error
        hello = json.loads((spec.checkpoint / CHECKPOINT_FILE).read_text()) if spec.checkpoint else None
        self.take_over(spec, hello)
        if probe is not None:
            try:
                async with asyncio.timeout(self.hello_bound_s):
                    await probe()
            except TimeoutError as error:
                raise SandboxStartFailed("no hello", details={"output": ""}) from error

    def take_over(self, spec: SandboxSpec, hello: dict[str, object] | None) -> None:
        """It runs, also without a start: of a server before. ``hello``: what its guest says; None: what a new one does."""
        self.specs[spec.sandbox_id] = spec
        self.ends[spec.sandbox_id] = asyncio.get_running_loop().create_future()
        if not self.no_guest:
            self._start_guest(spec, hello)

    def _start_guest(self, spec: SandboxSpec, saved: dict[str, object] | None) -> None:
        env = spec.guest_env
        json.loads(env["CLOCHE_ENV"])
        guest = FakeGuest(
            spec.uplink_directory / "uplink.sock",
            env["CLOCHE_SANDBOX_ID"],
            env["CLOCHE_EPOCH"],
            env["CLOCHE_UPLINK_TOKEN"],
            self.raw,
            hello=saved,
        )
        self.guests[spec.sandbox_id] = guest
        guest.start()

    def end(self, sandbox_id: str, status: SandboxStatus) -> None:
        """The sandbox ends by itself."""
        self.ends[sandbox_id].set_result(status)

    async def inspect(self, sandbox_id: str) -> SandboxStatus:
        if sandbox_id not in self.ends:
            return SandboxStatus(RunState.UNKNOWN, ExitReason.LOST)
        end = self.ends[sandbox_id]
        alive = RunState.PAUSED if sandbox_id in self.paused else RunState.RUNNING
        return end.result() if end.done() else SandboxStatus(alive)

    async def pause(self, sandbox_id: str) -> None:
        await self._must_be_alive(sandbox_id)
        self.paused.add(sandbox_id)

    async def resume(self, sandbox_id: str) -> None:
        await self._must_be_alive(sandbox_id)
        self.paused.discard(sandbox_id)

    async def _must_be_alive(self, sandbox_id: str) -> None:
        if not (await self.inspect(sandbox_id)).is_alive:
            raise SandboxNotRunning(f"sandbox {sandbox_id} does not run")

    async def checkpoint(self, sandbox_id: str, directory: Path, *, keep_running: bool) -> Checkpoint:
        await self._must_be_alive(sandbox_id)
        if self.may_save is not None:
            await self.may_save.wait()
        if self.checkpoint_error is not None:
            raise self.checkpoint_error
        memory = "memory_snapshot" in self.capabilities
        guest = self.guests.get(sandbox_id)
        directory.mkdir(mode=0o700)
        saved = directory / CHECKPOINT_FILE
        saved.write_text(json.dumps(guest.hello if guest and memory else None))
        self.checkpoints.append((sandbox_id, directory, keep_running))
        if not keep_running:
            await self.destroy(sandbox_id)
        return Checkpoint(memory, 0.01, (CHECKPOINT_FILE,), saved.stat().st_blocks * 512)

    def is_dying(self, sandbox_id: str) -> bool:
        return sandbox_id in self.dying

    async def wait_exit(self, sandbox_id: str) -> SandboxStatus:
        return await asyncio.shield(self.ends[sandbox_id])

    async def list(self) -> list[str]:
        return list(self.specs)

    async def destroy(self, sandbox_id: str) -> None:
        self.destroyed.append(sandbox_id)
        if self.destroy_hangs:
            await asyncio.sleep(3600)
        self.specs.pop(sandbox_id, None)
        self.paused.discard(sandbox_id)
        guest = self.guests.pop(sandbox_id, None)
        if guest is not None:
            await guest.close()
        end = self.ends.pop(sandbox_id, None)
        if end is not None and not end.done():
            end.set_result(SandboxStatus(RunState.EXITED, ExitReason.SIGNAL, signal=9))

    async def oom_kills(self, _sandbox_id: str) -> int:
        return 0

    async def usage(self, _sandbox_id: str) -> Usage:
        return Usage(0, 0, 0.0, 0, self.disk_bytes)

    async def console(self, _sandbox_id: str) -> str:
        return ""

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class FakeImage:
    name: str
    digest: str = "sha256:" + "0" * 64
    rootfs: Path = Path("/nonexistent")
    env: dict[str, str] = field(default_factory=dict)
    created_at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    size_bytes: int = 1


class FakeImages:
    """One image, ``python``."""

    def resolve(self, reference: str) -> FakeImage:
        if reference not in ("python", FakeImage.digest):
            raise NotFound(
                f"no image {reference!r}",
                hint=f"cloche image build {reference}",
                details={"kind": "image", "id": reference},
            )
        return FakeImage("python")

    def list(self) -> list[FakeImage]:
        return [FakeImage("python")]
