"""What a snapshot says of itself: written beside its files, and the head of an exported one. Pure.

Whoever imports a snapshot believes nothing of it but what this file's digests let him check.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, ValidationError, field_validator, model_validator

from cloche.errors import InvalidRequest
from cloche.models import Env, Model, Resources, Timestamp, VolumeAttachment
from cloche.models.sandboxes import DriverName
from cloche_server.clock import to_datetime
from cloche_server.state import SavedFile, SnapshotRow

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
MAX_MANIFEST_BYTES: Final = 16 * 1024 * 1024
"""1024 variables of 128 KiB would be more; no environment that works has them: execve takes 2 MiB."""

FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class ManifestFile(Model):
    """``digest`` as `digest_of_file` has it. ``extents``, in an archive alone: offset and length of the pieces of the file
    that are in it, in order; everything between is zero."""

    name: FileName
    size: int = Field(ge=0, le=2**50)
    digest: Digest
    extents: list[tuple[int, int]] | None = Field(default=None, max_length=65_536)

    @model_validator(mode="after")
    def _within(self) -> Self:
        end = 0
        for offset, length in self.extents or ():
            if offset < end or length < 1:
                raise ValueError("extents must be in order and not empty")
            end = offset + length
        if end > self.size:
            raise ValueError("extents must be within the file")
        return self

    @property
    def stored_bytes(self) -> int:
        """What an archive has of it."""
        return sum(length for _, length in self.extents or ())


class SavedGuest(Model):
    """Who the guest in the memory was; ``session_hash`` is what its first hello after a restore is checked against."""

    sandbox_id: Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{20}$")]
    epoch: Annotated[str, StringConstraints(pattern=r"^[a-z0-9.-]{1,64}$")]
    session_hash: Digest


class Manifest(Model):
    """Everything that is needed to start from the files, on this server or another. ``env`` has values: keep it secret."""

    format: Literal[1] = FORMAT
    created_at: Timestamp
    memory: bool
    driver: DriverName
    image: str = Field(max_length=128)
    image_digest: Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
    resources: Resources
    sudo: bool
    env: Env
    volumes: list[VolumeAttachment] = Field(max_length=16)
    guest: SavedGuest | None = None
    files: list[ManifestFile] = Field(min_length=1, max_length=64)
    signature: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{64})?$")] = ""
    """In an archive: HMAC-SHA256 by the server that wrote it, over all the rest."""

    @field_validator("files")
    @classmethod
    def _distinct(cls, files: list[ManifestFile]) -> list[ManifestFile]:
        names = [file.name for file in files]
        if len(set(names)) < len(names) or MANIFEST in names:
            raise ValueError("file names must be distinct, and none may be that of the manifest")
        return files


def manifest_of(row: SnapshotRow, files: Sequence[SavedFile]) -> Manifest:
    """Of a snapshot whose files are complete."""
    return Manifest.model_validate(
        {
            **{name: getattr(row, name) for name in ("memory", "driver", "image", "image_digest", "resources", "sudo")},
            "env": row.env,
            "volumes": row.volumes,
            "created_at": to_datetime(row.created_us),
            "guest": row.identity or None,
            "files": [{"name": file.name, "size": file.size, "digest": file.digest} for file in files],
        }
    )


def sign(manifest: Manifest, key: bytes) -> Manifest:
    """With its signature."""
    return manifest.model_copy(update={"signature": _signature(manifest, key)})


def is_signed(manifest: Manifest, key: bytes) -> bool:
    """Whether the holder of ``key`` wrote exactly this."""
    return hmac.compare_digest(manifest.signature, _signature(manifest, key))


def _signature(manifest: Manifest, key: bytes) -> str:
    return hmac.new(key, manifest.model_dump_json(exclude={"signature"}).encode(), hashlib.sha256).hexdigest()


def read_manifest(raw: bytes) -> Manifest:
    """`InvalidRequest` for what is none, or of a format this server does not know."""
    try:
        return Manifest.model_validate_json(raw)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise InvalidRequest(
            f"the stream begins with no manifest of a snapshot: {where}: {problem['msg']}",
            hint="import what `cloche snapshots export` wrote, unchanged",
            details={"errors": [{"field": where, "problem": problem["msg"]}]},
        ) from error


def content_digest(files: Sequence[SavedFile]) -> str:
    """SHA-256 over names and digests of all files: two snapshots with the same one have the same content."""
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda file: file.name):
        digest.update(f"{file.name}\0{file.size}\0{file.digest}\n".encode())
    return digest.hexdigest()
