"""Puts a server together from its settings, drivers and images; takes it apart in the right order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache

from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from cloche.errors import InvalidRequest
from cloche_server.drivers import Driver
from cloche_server.first_key import ensure_first_key
from cloche_server.http import make_app, make_http_server
from cloche_server.key_file import load_key
from cloche_server.links import LinkSigner, Logins
from cloche_server.metrics import Metrics, Values
from cloche_server.open_calls import OpenCalls
from cloche_server.openapi import openapi_document
from cloche_server.origin import known_names
from cloche_server.pools import PoolService, Warm, make_warm
from cloche_server.preview import PreviewGateway, PreviewService
from cloche_server.routes import ROUTES
from cloche_server.routing import Route
from cloche_server.sandboxes import DriverSet, IdempotentCreate, Images, Limits, Recovered, SandboxService, recover
from cloche_server.services import Services
from cloche_server.settings import Settings
from cloche_server.shares import ShareService
from cloche_server.snapshots import SnapshotFiles, SnapshotLibrary, SnapshotService
from cloche_server.state import (
    Database,
    KeptAnswers,
    KeyStore,
    PreviewStore,
    SandboxStore,
    ShareStore,
    SnapshotStore,
    VolumeStore,
)
from cloche_server.uplink import UplinkHub
from cloche_server.usage import UsageService
from cloche_server.volumes import VolumeService


@dataclass(frozen=True, slots=True)
class RunningServer:
    """Listening."""

    services: Services
    http: HTTPServer
    port: int
    recovered: Recovered
    made_first_key: bool


@asynccontextmanager
async def running_server(settings: Settings, drivers: Sequence[Driver], images: Images) -> AsyncIterator[RunningServer]:
    """Everything up, sandboxes of an earlier server found again; at the end everything down, sandboxes go on.

    Needs the directories of ``settings`` for itself (`cloche_server.data_dir.exclusive`).
    """
    database = Database.open(settings.database_path)
    try:
        keys = KeyStore(database)
        made_first_key = ensure_first_key(keys, settings.admin_key_path)
        driver_set = DriverSet(drivers, settings.driver)
        await driver_set.self_test()
        volumes = _make_volumes(settings, database)
        metrics = Metrics()
        sandboxes = _make_sandboxes(settings, database, driver_set, images, volumes, metrics)
        snapshots = _make_snapshots(settings, database, sandboxes)
        await snapshots.recover()
        usage = UsageService(sandboxes.store, sandboxes.hub, driver_set, settings.suspended_dir)
        sandboxes.registry.life_ends = usage.end_life
        recovered = await recover(sandboxes)
        await volumes.prepare()
        sandboxes.start_keeping()
        usage.start()
        previews = PreviewService(PreviewStore(database), sandboxes, settings)
        links = LinkSigner(load_key(settings.link_key_path))
        shares = ShareService(ShareStore(database), links, sandboxes)
        warm = _make_warm(settings, database, sandboxes, snapshots)
        creates = IdempotentCreate(warm.creates.create, sandboxes.store, KeptAnswers(database))
        services = _make_services(
            settings,
            keys,
            sandboxes,
            creates,
            images,
            previews,
            links,
            shares,
            metrics,
            volumes,
            usage,
            warm,
            snapshots,
        )
        _add_gauges(services)
        gateway = _make_gateway(services)
        http = make_http_server(make_app(services, _routes(settings)), gateway)
        try:
            await warm.start()
            snapshots.start()
            port = _listen(http, settings)
            previews.listening_on(port)
            yield RunningServer(services, http, port, recovered, made_first_key)
        finally:
            await _shut_down(http, services)
            gateway.close()
    finally:
        database.close()


def _make_sandboxes(
    settings: Settings,
    database: Database,
    drivers: DriverSet,
    images: Images,
    volumes: VolumeService,
    metrics: Metrics,
) -> SandboxService:
    store = SandboxStore(database)
    hub = UplinkHub(settings.uplinks_dir, store.set_token_hash)
    hub.prepare()
    limits = Limits(
        max_sandboxes=settings.max_sandboxes,
        max_sandboxes_per_owner=settings.max_sandboxes_per_owner,
        max_running=settings.max_running,
        start_timeout_s=settings.start_timeout_s,
    )
    return SandboxService(
        store=store,
        hub=hub,
        drivers=drivers,
        images=images,
        limits=limits,
        saved_dir=settings.suspended_dir,
        volumes=volumes,
        metrics=metrics,
    )


def _make_snapshots(settings: Settings, database: Database, sandboxes: SandboxService) -> SnapshotService:
    files = SnapshotFiles(settings.snapshots_dir)
    library = SnapshotLibrary(SnapshotStore(database), files, settings.max_snapshots_per_owner)
    return SnapshotService(library, sandboxes, KeptAnswers(database), load_key(settings.archive_key_path))


def _make_warm(settings: Settings, database: Database, sandboxes: SandboxService, snapshots: SnapshotService) -> Warm:
    save, create = snapshots.save_for_template, snapshots.create_sandbox
    return make_warm(database, sandboxes, snapshots.library, save, create, settings.max_pools_per_owner)


def _make_services(
    settings: Settings,
    keys: KeyStore,
    sandboxes: SandboxService,
    creates: IdempotentCreate,
    images: Images,
    previews: PreviewService,
    links: LinkSigner,
    shares: ShareService,
    metrics: Metrics,
    volumes: VolumeService,
    usage: UsageService,
    warm: Warm,
    snapshots: SnapshotService,
) -> Services:
    return Services(
        settings=settings,
        keys=keys,
        sandboxes=sandboxes,
        creates=creates,
        drivers=sandboxes.drivers,
        images=images,
        host_names=known_names(settings.host, settings.allowed_hosts),
        open_calls=OpenCalls(),
        openapi=cache(lambda: openapi_document(_routes(settings))),  # 0.12 s, when somebody asks for it
        links=links,
        logins=Logins(),
        previews=previews,
        shares=shares,
        metrics=metrics,
        volumes=volumes,
        usage=usage,
        warm=warm,
        snapshots=snapshots,
        templates=warm.templates,
        pools=warm.pools,
    )


def _routes(settings: Settings) -> Sequence[Route]:
    """As the operator wants them: ``/metrics`` may be open."""
    opened = "metrics" if settings.metrics_open else None
    return [replace(route, role=None) if route.operation == opened else route for route in ROUTES]


def _make_volumes(settings: Settings, database: Database) -> VolumeService:
    directories = (settings.volumes_dir, settings.volume_mounts_dir)
    return VolumeService(VolumeStore(database), *directories, settings.max_volumes_per_owner)


def _add_gauges(services: Services) -> None:
    """What is asked for at each scrape; what happens is told by those who do it."""
    store, hub, metrics = services.sandboxes.store, services.sandboxes.hub, services.metrics
    metrics.gauge("cloche_sandboxes", "Sandboxes that are not deleted.", ("state", "driver"), store.count_by_state)
    metrics.gauge("cloche_uplink_connections", "Open connections of guests.", (), lambda: {(): hub.connections()})
    metrics.gauge(
        "cloche_pool_sandboxes", "Of all pools: ready, being made, wanted.", ("state",), lambda: _pooled(services.pools)
    )


def _pooled(pools: PoolService) -> Values:
    stats = [pool.stats for pool in pools.list(None)]
    return {
        ("ready",): sum(one.ready for one in stats),
        ("filling",): sum(one.filling for one in stats),
        ("wanted",): sum(one.target for one in stats),
    }


def _make_gateway(services: Services) -> PreviewGateway:
    return PreviewGateway(
        services.previews,
        sandboxes=services.sandboxes,
        keys=services.keys,
        open_calls=services.open_calls,
        host_names=services.host_names,
    )


def _listen(http: HTTPServer, settings: Settings) -> int:
    try:
        sockets = bind_sockets(settings.port, settings.host)
    except OSError as error:
        raise InvalidRequest(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}",
            hint="choose another with --host and --port",
        ) from error
    http.add_sockets(sockets)
    return int(sockets[0].getsockname()[1])


async def _shut_down(http: HTTPServer, services: Services) -> None:
    http.stop()
    await services.open_calls.close(services.settings.shutdown_grace_s)
    await http.close_all_connections()
    await services.warm.close()
    await services.snapshots.close()
    await services.sandboxes.close()
    await services.usage.close()
    await services.volumes.close()
    services.sandboxes.hub.close()
