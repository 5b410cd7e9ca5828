"""Settings of the guest, all from environment variables; docs/contexts.md lists them."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from cloche_guest.children import Account

_PRIVATE = ("CLOCHE_SANDBOX_ID", "CLOCHE_EPOCH", "CLOCHE_UPLINK_TOKEN", "CLOCHE_ENV", "CLOCHE_MEMORY_GUARD")


@dataclass(frozen=True)
class GuestConfig:
    """`account` None: kernels run as whoever runs the guest."""

    sandbox_id: str
    epoch: str
    token: str
    env: Mapping[str, str]
    listen: tuple[str, int] | None
    uplink: Path
    kernel_python: str
    account: Account | None
    workspace: str
    runtime_dir: Path
    state_dir: Path
    memory_guard: bool


def take_config(environ: MutableMapping[str, str], *, is_root: bool) -> GuestConfig:
    """Read the settings and take them out of `environ`, so that nothing started later sees the token.

    Raises:
        ValueError: a setting that cannot be used, by name.
    """
    private = {name: environ.pop(name, "") for name in _PRIVATE}
    settings = {name: environ.pop(name) for name in list(environ) if name.startswith("CLOCHE_GUEST_")}
    return GuestConfig(
        sandbox_id=private["CLOCHE_SANDBOX_ID"],
        epoch=private["CLOCHE_EPOCH"],
        token=private["CLOCHE_UPLINK_TOKEN"],
        env=_json_env(private["CLOCHE_ENV"]),
        listen=_listen(settings.get("CLOCHE_GUEST_LISTEN", "")),
        uplink=Path(settings.get("CLOCHE_GUEST_UPLINK", "/run/cloche/uplink.sock")),
        kernel_python=settings.get("CLOCHE_GUEST_KERNEL_PYTHON", "/opt/venv/bin/python"),
        account=_account(settings.get("CLOCHE_GUEST_USER", "user")) if is_root else None,
        workspace=settings.get("CLOCHE_GUEST_WORKSPACE", "/workspace"),
        runtime_dir=Path(settings.get("CLOCHE_GUEST_RUNTIME_DIR", "/run/cloche-guest")),
        state_dir=Path(settings.get("CLOCHE_GUEST_STATE_DIR", "/var/lib/cloche-guest")),
        memory_guard=private["CLOCHE_MEMORY_GUARD"] == "1",
    )


def _json_env(text: str) -> dict[str, str]:
    try:
        env = json.loads(text or "{}")
    except ValueError as error:
        raise ValueError(f"CLOCHE_ENV is not JSON: {error}") from None
    if not isinstance(env, dict) or not all(isinstance(value, str) for value in env.values()):
        raise ValueError("CLOCHE_ENV must be a JSON object of strings")
    return env


def _listen(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if host != "127.0.0.1" or not port.isdigit():
        raise ValueError(f"CLOCHE_GUEST_LISTEN must be 127.0.0.1:PORT, not {text!r}")
    return host, int(port)


def _account(name: str) -> Account | None:
    """Empty: nobody else, kernels run as root."""
    if not name:
        return None
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        raise ValueError(f"CLOCHE_GUEST_USER={name}: there is no such user") from None
    return Account(entry.pw_uid, entry.pw_gid, entry.pw_dir, entry.pw_name)


def base_environment(environ: Mapping[str, str], account: Account | None) -> dict[str, str]:
    """What every program in the sandbox gets, before the sandbox's own env."""
    env = {"LANG": "C.UTF-8", "PATH": os.defpath, **environ}
    if account is not None:
        env |= {"HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": "/bin/bash"}
    return env
