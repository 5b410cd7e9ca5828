"""Drivers: what makes sandboxes. The server uses these names and nothing below them."""

from cloche_server.drivers._base import (
    GUEST_ARGV,
    UPLINK_MOUNT,
    Checkpoint,
    Driver,
    ExitReason,
    Probe,
    ResourceLimits,
    RunState,
    SandboxSpec,
    SandboxStatus,
    SelfTest,
    Usage,
    VolumeMount,
    WhenSaved,
    check_sandbox_id,
    check_target,
)
from cloche_server.drivers._checkpoint import make_durable
from cloche_server.drivers._oci_driver import OciDriver
from cloche_server.drivers._select import doctor, open_drivers, pick_driver, report, try_drivers

__all__ = [
    "GUEST_ARGV",
    "UPLINK_MOUNT",
    "Checkpoint",
    "Driver",
    "ExitReason",
    "OciDriver",
    "Probe",
    "ResourceLimits",
    "RunState",
    "SandboxSpec",
    "SandboxStatus",
    "SelfTest",
    "Usage",
    "VolumeMount",
    "WhenSaved",
    "check_sandbox_id",
    "check_target",
    "doctor",
    "make_durable",
    "open_drivers",
    "pick_driver",
    "report",
    "try_drivers",
]
