"""Everything a request may need, in one value that is passed along; nothing is global."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cloche_server.links import LinkSigner, Logins
from cloche_server.metrics import Metrics
from cloche_server.open_calls import OpenCalls
from cloche_server.pools import PoolService, Warm
from cloche_server.preview import PreviewService
from cloche_server.sandboxes import DriverSet, IdempotentCreate, Images, SandboxService
from cloche_server.settings import Settings
from cloche_server.shares import ShareService
from cloche_server.snapshots import SnapshotService
from cloche_server.state import KeyStore
from cloche_server.templates import TemplateService
from cloche_server.usage import UsageService
from cloche_server.volumes import VolumeService


@dataclass(frozen=True, slots=True)
class Services:
    """Made by `cloche_server.assembly`, or by a test."""

    settings: Settings
    keys: KeyStore
    sandboxes: SandboxService
    creates: IdempotentCreate
    drivers: DriverSet
    images: Images
    host_names: frozenset[str]
    open_calls: OpenCalls
    openapi: Callable[[], bytes]
    links: LinkSigner
    logins: Logins
    previews: PreviewService
    shares: ShareService
    metrics: Metrics
    volumes: VolumeService
    usage: UsageService
    warm: Warm
    snapshots: SnapshotService
    templates: TemplateService
    pools: PoolService
