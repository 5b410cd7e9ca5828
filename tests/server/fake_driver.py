"""A driver of the tests: its sandboxes are `FakeGuest`s in this process, and it fails on demand."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cloche.errors import NotFound, SandboxStartFailed
from cloche_server.drivers._base import (
    ExitReason,
    Probe,
    RunState,
    SandboxSpec,
    SandboxStatus,
    SelfTest,
    Usage,
)

from .fake_guest import FakeGuest, Raw


@dataclass
class FakeDriver:
    """``start_error`` is raised by the next start; ``no_guest`` starts sandboxes that never dial."""

    name: str = "runc"
    isolation: str = "none, a fake"
    capabilities: frozenset[str] = frozenset()
    works: bool = True
    start_error: Exception | None = None
    no_guest: bool = False
    raw: Raw | None = None
    guests: dict[str, FakeGuest] = field(default_factory=dict)
    specs: dict[str, SandboxSpec] = field(default_factory=dict)
    ends: dict[str, asyncio.Future[SandboxStatus]] = field(default_factory=dict)
    destroyed: list[str] = field(default_factory=list)
    destroy_hangs: bool = False

    async def self_test(self) -> SelfTest:
        why = None if self.works else "it is broken on purpose"
        return SelfTest(self.name, self.isolation, self.works, "1", self.capabilities, why, why and "repair it")

    async def start(self, spec: SandboxSpec, probe: Probe | None = None) -> None:
        if self.start_error is not None:
            raise self.start_error
        self.specs[spec.sandbox_id] = spec
        self.ends[spec.sandbox_id] = asyncio.get_running_loop().create_future()
        if not self.no_guest:
            self._start_guest(spec)
        if probe is not None:
            try:
                async with asyncio.timeout(2):
                    await probe()
            except TimeoutError as error:
                raise SandboxStartFailed("no hello", details={"output": ""}) from error

    def _start_guest(self, spec: SandboxSpec) -> None:
        env = spec.guest_env
        json.loads(env["CLOCHE_ENV"])
        guest = FakeGuest(
            spec.uplink_directory / "uplink.sock",
            env["CLOCHE_SANDBOX_ID"],
            env["CLOCHE_EPOCH"],
            env["CLOCHE_UPLINK_TOKEN"],
            self.raw,
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
        return end.result() if end.done() else SandboxStatus(RunState.RUNNING)

    async def wait_exit(self, sandbox_id: str) -> SandboxStatus:
        return await asyncio.shield(self.ends[sandbox_id])

    async def list(self) -> list[str]:
        return list(self.specs)

    async def destroy(self, sandbox_id: str) -> None:
        self.destroyed.append(sandbox_id)
        if self.destroy_hangs:
            await asyncio.sleep(3600)
        self.specs.pop(sandbox_id, None)
        guest = self.guests.pop(sandbox_id, None)
        if guest is not None:
            await guest.close()
        end = self.ends.pop(sandbox_id, None)
        if end is not None and not end.done():
            end.set_result(SandboxStatus(RunState.EXITED, ExitReason.SIGNAL, signal=9))

    async def oom_kills(self, _sandbox_id: str) -> int:
        return 0

    async def usage(self, _sandbox_id: str) -> Usage:
        return Usage(0, 0, 0.0, 0)

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
        if reference != "python":
            raise NotFound(
                f"no image {reference!r}",
                hint=f"cloche image build {reference}",
                details={"kind": "image", "id": reference},
            )
        return FakeImage("python")

    def list(self) -> list[FakeImage]:
        return [FakeImage("python")]
