"""What the server remembers: SQLite in WAL mode through SQLAlchemy Core, so that PostgreSQL can take its place."""

from cloche_server.state._database import Database
from cloche_server.state._kept_answers import KeptAnswer, KeptAnswers, Made, Operation
from cloche_server.state._keys import KeyStore
from cloche_server.state._pages import PageToken, name_in_use
from cloche_server.state._pools import IdempotencyClaim, PoolRow, PoolStore
from cloche_server.state._previews import PreviewRow, PreviewStore
from cloche_server.state._sandboxes import SandboxFilter, SandboxRow, SandboxStore
from cloche_server.state._shares import ShareRow, ShareStore
from cloche_server.state._snapshots import SavedFile, SnapshotFilter, SnapshotRow, SnapshotState, SnapshotStore
from cloche_server.state._templates import TemplateRow, TemplateStore
from cloche_server.state._volumes import Attachment, VolumeFilter, VolumeRow, VolumeStore

__all__ = [
    "Attachment",
    "Database",
    "IdempotencyClaim",
    "KeptAnswer",
    "KeptAnswers",
    "KeyStore",
    "Made",
    "Operation",
    "PageToken",
    "PoolRow",
    "PoolStore",
    "PreviewRow",
    "PreviewStore",
    "SandboxFilter",
    "SandboxRow",
    "SandboxStore",
    "SavedFile",
    "ShareRow",
    "ShareStore",
    "SnapshotFilter",
    "SnapshotRow",
    "SnapshotState",
    "SnapshotStore",
    "TemplateRow",
    "TemplateStore",
    "VolumeFilter",
    "VolumeRow",
    "VolumeStore",
    "name_in_use",
]
