"""Settings: everything an operator can choose, from the environment and the command line, checked once at start.

A `Settings` never changes while the server runs. Units are in the names. Each field is documented in docs/server.md.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from cloche.errors import InvalidRequest
from cloche.models import DriverName

ENV_PREFIX: Final = "CLOCHE_"

DEFAULT_PORT: Final = 8720


def default_data_dir(environ: Mapping[str, str] = os.environ, uid: int | None = None) -> Path:
    """/var/lib/cloche as root, else below the user's XDG data directory."""
    if (os.geteuid() if uid is None else uid) == 0:
        return Path("/var/lib/cloche")
    base = environ.get("XDG_DATA_HOME") or str(Path.home() / ".local/share")
    return Path(base) / "cloche"


def default_run_dir(environ: Mapping[str, str] = os.environ, uid: int | None = None) -> Path:
    """/run/cloche as root, else below the user's run-time directory, else below /tmp.

    It is short on purpose: the path of a Unix socket has 107 bytes.
    """
    uid = os.geteuid() if uid is None else uid
    if uid == 0:
        return Path("/run/cloche")
    base = environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "cloche" if base else Path(f"/tmp/cloche-{uid}")


class Settings(BaseModel):
    """Choices of the operator; the field ``x_y`` is the variable ``CLOCHE_X_Y``. Lists are separated by commas."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    data_dir: Path = Field(default_factory=default_data_dir, description="database, admin key, images")
    run_dir: Path = Field(default_factory=default_run_dir, description="uplink sockets; may vanish at a reboot")
    host: str = Field(default="127.0.0.1", min_length=1, description="address to listen on")
    port: int = Field(default=DEFAULT_PORT, ge=0, le=65_535, description="0: any free one, printed at start")
    driver: DriverName | None = Field(default=None, description="default driver; unset: the strongest that works")
    allowed_hosts: tuple[str, ...] = Field(default=(), description="more names clients may use in the Host header")
    allowed_origins: tuple[str, ...] = Field(default=(), description="more web origins, as https://ui.example.com")
    max_sandboxes: int = Field(
        default=500, ge=1, description="of all owners together, suspended and stopped ones included"
    )
    max_sandboxes_per_owner: int = Field(default=250, ge=1, description="the same for each owner")
    max_running: int = Field(default=100, ge=1, description="with processes: running, paused, or on the way there")
    max_body_bytes: int = Field(default=8 * 1024 * 1024, ge=1024, description="of one request")
    max_answer_bytes: int = Field(
        default=128 * 1024 * 1024, ge=1024, description="of one JSON answer or WebSocket message of a guest"
    )
    start_timeout_s: float = Field(default=60, gt=0, description="for one create, with its second try")
    shutdown_grace_s: float = Field(default=10, ge=0, description="for requests under way at TERM")
    preview_domain: str = Field(
        default="localhost",
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$",
        max_length=200,
        description="previews are at {port}-{sandbox id} below this name",
    )
    preview_scheme: Literal["http", "https"] = Field(
        default="http", description="of preview URLs; https behind a proxy that ends TLS"
    )
    preview_port: int | None = Field(
        default=None, ge=1, le=65_535, description="of preview URLs; unset: 443 for https, else the port listened on"
    )
    metrics_open: bool = Field(
        default=False, description="/metrics for everybody who reaches the server, without a key"
    )
    max_volumes_per_owner: int = Field(default=100, ge=1)
    max_pools_per_owner: int = Field(default=20, ge=1)
    max_snapshots_per_owner: int = Field(default=200, ge=1, description="those of templates do not count")
    log_format: Literal["auto", "json", "text"] = Field(default="auto", description="auto: text on a terminal")

    @field_validator("allowed_hosts", "allowed_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip().lower() for part in value.split(",") if part.strip())
        return value

    @property
    def database_path(self) -> Path:
        return self.data_dir / "cloche.db"

    @property
    def admin_key_path(self) -> Path:
        return self.data_dir / "admin.key"

    @property
    def link_key_path(self) -> Path:
        return self.data_dir / "link.key"

    @property
    def archive_key_path(self) -> Path:
        return self.data_dir / "archive.key"

    @property
    def snapshots_dir(self) -> Path:
        return self.data_dir / "snapshots"

    @property
    def suspended_dir(self) -> Path:
        return self.data_dir / "suspended"

    @property
    def volumes_dir(self) -> Path:
        return self.data_dir / "volumes"

    @property
    def volume_mounts_dir(self) -> Path:
        return self.run_dir / "volumes"

    @property
    def uplinks_dir(self) -> Path:
        return self.run_dir / "uplinks"


def load_settings(given: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> Settings:
    """The command line (``given``; None: not given) over the environment over defaults. `InvalidRequest` says why not."""
    values: dict[str, object] = {
        name: environ[ENV_PREFIX + name.upper()]
        for name in Settings.model_fields
        if environ.get(ENV_PREFIX + name.upper())
    }
    values |= {name: value for name, value in given.items() if value is not None}
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise InvalidRequest(f"bad settings: {problems}", hint="docs/server.md lists them all") from error
