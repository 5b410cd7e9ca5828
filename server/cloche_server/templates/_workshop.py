"""What builds and pools need of the sandboxes, as a seam: sandboxes that nobody sees yet, made, saved and thrown away."""

from __future__ import annotations

from typing import Final, Protocol

from cloche.models import SandboxCreate
from cloche_server.sandboxes._live import Live

BUILDER: Final = "@build"
"""Where a template's builder is parked. No pool can have this name, so nobody is ever given one."""

FILLING: Final = "@fill"
"""Where one of a pool is until everything in it is started; a server that finds it there after a crash throws it away."""


class Workshop(Protocol):
    """Everything it makes belongs to an owner, and is hidden from him until it is claimed."""

    async def make(self, owner: str, wanted: SandboxCreate, pool: str) -> Live:
        """A running sandbox, parked in ``pool``. Raises what a create does; then nothing is left."""

    def parked(self, sandbox_id: str) -> Live | None:
        """One that was made here, still runs and was not killed while it stood still, and is nobody's yet."""

    def belongs_to(self, live: Live, pool: str) -> None:
        """It is parked there from now on."""

    async def freeze(self, live: Live) -> bool:
        """It stands still, and costs memory alone, until `thaw`; False where the driver cannot. `ClocheError`."""

    async def is_frozen(self, live: Live) -> bool:
        """Also when another server did it."""

    async def thaw(self, live: Live) -> None:
        """It goes on, at once; nothing when it was not frozen. `ClocheError`."""

    async def tell_again(self, live: Live) -> None:
        """Its guest hears who it is already, so that a claim is nothing new to it. `ClocheError`."""

    def handed_out(self, live: Live, begin: bool) -> None:
        """It is somebody's now: its row says so, and whoever looks after lifecycles is told; its guest, too, if ``begin``."""

    async def bind_next(self) -> bool:
        """One that was handed out and was not needed yet is told who it is. False: there was none. Never raises."""

    async def save(self, live: Live, reference: str) -> str:
        """The id of a snapshot of it, with memory where the driver can, for the template's version ``reference``."""

    async def discard(self, sandbox_id: str) -> None:
        """Ends it and removes its row: its id was never told to anybody. Never raises; what fails is logged."""

    async def discard_snapshot(self, snapshot_id: str) -> None:
        """Nothing when there is none."""

    def has_snapshot(self, snapshot_id: str) -> bool:
        """Whether it is there and not known to be broken."""
