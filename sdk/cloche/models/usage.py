"""What sandboxes cost."""

from __future__ import annotations

from pydantic import Field

from cloche.models._base import Model, SandboxId, Timestamp


class Usage(Model):
    """Of one sandbox over its whole life, suspended times and earlier epochs included."""

    sandbox_id: SandboxId
    cpu_s: float = Field(description="active CPU seconds, the runtime's own included")
    memory_bytes: int = Field(description="now; 0 when it does not run")
    memory_peak_bytes: int
    memory_mb_s: float = Field(description="MiB x seconds while it ran or was paused")
    disk_bytes: int = Field(description="on the server's disk: what it wrote, or its saved state")
    uplink_received_bytes: int = Field(description="from the sandbox, over its uplinks: all the network it has")
    uplink_sent_bytes: int
    processes: int
    running_s: float
    as_of: Timestamp
