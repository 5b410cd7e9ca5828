"""The OCI configuration of a sandbox. Pure: a spec and a few choices in, JSON values out. Reasons: docs/security.md.

Both runtimes read the same configuration; `Isolation` is what differs between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from cloche_server.drivers._base import UPLINK_MOUNT, SandboxSpec, VolumeMount
from cloche_server.drivers._cgroup_files import MEBIBYTE
from cloche_server.drivers._idmap import IDS_PER_SANDBOX
from cloche_server.drivers._launch_orders import Stage
from cloche_server.drivers._seccomp import Profile

JsonObject = dict[str, JsonValue]

DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

OPEN_FILES: Final = 65_536
"""Per process, if the server may have as many itself. Ten thousand are ordinary work; their cost is kernel memory,
which the cgroup counts."""

SHM_SHARE: Final = 0.5
"""Of the memory limit, as the kernel's own default for a tmpfs; the pages count against the limit all the same."""

CAPABILITIES: Final[Mapping[str, str]] = {
    "CAP_CHOWN": "install files for another user (apt, pip as root)",
    "CAP_DAC_OVERRIDE": "root reads and writes the user's files",
    "CAP_FOWNER": "root changes modes and times of the user's files",
    "CAP_FSETID": "root keeps setgid bits while it does",
    "CAP_KILL": "PID 1 signals the user's processes",
    "CAP_SETGID": "PID 1 starts kernels as the user",
    "CAP_SETUID": "PID 1 starts kernels as the user",
    "CAP_NET_BIND_SERVICE": "servers on ports below 1024, as a web server on port 80",
}
"""All a sandbox's root has, and why. They count only inside the sandbox's own user namespace (runc) or its user-space
kernel (gVisor). Left out on purpose: SYS_ADMIN, SYS_CHROOT, SYS_PTRACE, NET_ADMIN, NET_RAW, MKNOD, SETFCAP."""

WITHOUT_SUDO: Final = frozenset(CAPABILITIES) - {"CAP_FSETID"}
"""PID 1 needs the rest itself; FSETID only matters to installers."""

MASKED_PATHS: Final = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/bus",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/sysrq-trigger",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
    "/sys/block",
    "/sys/dev/block",
    "/sys/devices/virtual/powercap",
    "/sys/devices/virtual/block",
    "/sys/firmware",
    "/sys/fs",
    "/sys/hypervisor",
    "/sys/kernel",
    "/sys/module",
    "/sys/power",
)
"""Tell about the host or its sandboxes, or steer it. Docker's list (oci/defaults.go), with interrupts and powercap
(side channels, CVE-2020-8694), kallsyms, the page counts, and the parts of /sys that no program here needs."""

MEMORY_EVENTS: Final = "/run/cloche-memory-events"

READ_ONLY_PATHS: Final = ("/proc/fs", "/proc/irq", "/proc/sys")


@dataclass(frozen=True, slots=True)
class Isolation:
    """``first_id`` None: the runtime brings its own user namespace. ``cgroup_path`` None: it leaves cgroups alone."""

    root: str
    first_id: int | None
    seccomp: Profile | None
    cgroup_path: str | None
    tmp_in_memory: bool
    open_files: int = OPEN_FILES
    env: Mapping[str, str] = field(default_factory=dict)
    """Told to PID 1; the guest's own variables win."""
    memory_events: str | None = None
    """The cgroup's file of that name, shown read-only so that the guest can tell why a process was killed. One file: a
    whole cgroupfs inside would be a way out (CVE-2022-0492)."""


def build_config(spec: SandboxSpec, stage: Stage, isolation: Isolation) -> JsonObject:
    """The whole ``config.json``."""
    return {
        "ociVersion": "1.0.2",
        "hostname": "sandbox",
        "process": _process(spec, isolation),
        "root": {"path": isolation.root, "readonly": False},
        "mounts": _mounts(spec, stage, isolation),
        "linux": _linux(isolation),
    }


def build_environment(spec: SandboxSpec, extra: Mapping[str, str]) -> list[str]:
    """The image's variables, over them the guest's. `ValueError` for a name or value that C cannot carry."""
    merged = {"PATH": DEFAULT_PATH, **spec.image_env, **extra, **spec.guest_env}
    for name, value in merged.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise ValueError(f"not an environment variable: {name!r}")
    return [f"{name}={value}" for name, value in merged.items()]


def _process(spec: SandboxSpec, isolation: Isolation) -> JsonObject:
    capabilities: list[JsonValue] = [*sorted(CAPABILITIES if spec.sudo else WITHOUT_SUDO)]
    return {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": list(spec.guest_argv),
        "env": list[JsonValue](build_environment(spec, isolation.env)),
        "cwd": "/",
        "noNewPrivileges": True,  # the image's sudo asks PID 1; the pinned runsc ignores set-user-id bits anyway
        "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
        "rlimits": [
            _rlimit("RLIMIT_CORE", 0),
            _rlimit("RLIMIT_NOFILE", isolation.open_files),
            _rlimit("RLIMIT_NPROC", spec.resources.max_processes),
        ],
    }


def _rlimit(name: str, value: int) -> JsonObject:
    return {"type": name, "soft": value, "hard": value}


def _mounts(spec: SandboxSpec, stage: Stage, isolation: Isolation) -> list[JsonValue]:
    half = int(spec.resources.memory_mb * MEBIBYTE * SHM_SHARE)
    private = ["nosuid", "nodev", "noexec"]
    tmp = [_mount("/tmp", "tmpfs", ["nosuid", "nodev", "mode=1777", f"size={half}"])]
    return [
        _mount("/proc", "proc", private),
        _mount("/dev", "tmpfs", ["nosuid", "noexec", "strictatime", "mode=755", "size=64k"]),
        _mount("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
        _mount("/dev/shm", "tmpfs", [*private, "mode=1777", f"size={half}"]),
        _mount("/dev/mqueue", "mqueue", private),
        _mount("/sys", "sysfs", [*private, "ro"]),
        *(tmp if isolation.tmp_in_memory else []),
        _mount(UPLINK_MOUNT, "bind", ["bind", "ro", *private], stage.uplink),
        *(
            [_mount(MEMORY_EVENTS, "bind", ["bind", "ro", *private], isolation.memory_events)]
            if isolation.memory_events
            else []
        ),
        *(_volume(volume, stage.volume(number)) for number, volume in enumerate(spec.volumes_in_order)),
    ]


def _volume(volume: VolumeMount, source: str) -> JsonObject:
    return _mount(volume.target, "bind", ["bind", "ro" if volume.read_only else "rw", "nosuid", "nodev"], source)


def _mount(destination: str, fs_type: str, options: Sequence[str], source: str | None = None) -> JsonObject:
    return {"destination": destination, "type": fs_type, "source": source or fs_type, "options": list(options)}


def _linux(isolation: Isolation) -> JsonObject:
    namespaces = [
        "pid",
        "ipc",
        "uts",
        "mount",
        "network",
        *(["user", "cgroup"] if isolation.first_id is not None else []),
    ]
    linux: JsonObject = {
        "namespaces": [{"type": name} for name in namespaces],
        "rootfsPropagation": "private",
        "maskedPaths": list(MASKED_PATHS),
        "readonlyPaths": list(READ_ONLY_PATHS),
    }
    if isolation.first_id is not None:
        mapping: JsonObject = {"containerID": 0, "hostID": isolation.first_id, "size": IDS_PER_SANDBOX}
        linux |= {"uidMappings": [mapping], "gidMappings": [mapping]}
    if isolation.cgroup_path is not None:
        linux["cgroupsPath"] = isolation.cgroup_path
    if isolation.seccomp is not None:
        linux["seccomp"] = _as_json(isolation.seccomp)
    return linux


def _as_json(profile: Profile) -> JsonObject:
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile["defaultErrnoRet"],
        "architectures": list(profile["architectures"]),
        "syscalls": [
            {
                **{key: value for key, value in rule.items() if key not in ("names", "args")},  # type: ignore[misc]
                "names": list(rule["names"]),
                "args": [dict(argument) for argument in rule.get("args", [])],  # type: ignore[arg-type]
            }
            for rule in profile["syscalls"]
        ],
    }
