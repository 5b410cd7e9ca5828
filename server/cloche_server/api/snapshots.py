"""Snapshots, restore, fork and compare of the API: a thin layer over the snapshot service."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from cloche.models import Compare, Fork, Page, Restore, Snapshot, SnapshotCreate
from cloche_server.api.sandboxes import split_label, visible_owner
from cloche_server.routing import BodySink, Call, ListSnapshots, NewName, Reply
from cloche_server.state import SnapshotFilter

if TYPE_CHECKING:
    from cloche_server.services import Services


async def create(services: Services, call: Call) -> Reply:
    wanted = cast("SnapshotCreate", call.body)
    repeated, sandbox_id = services.snapshots.repeated, call.path["sandbox_id"]
    row = await repeated.snapshot(call.principal, sandbox_id, wanted, call.idempotency_key)
    return Reply(row.to_model(), status=201, headers={"Location": f"/v1/snapshots/{row.id}"})


async def list_some(services: Services, call: Call) -> Reply:
    return _page(services, call, cast("ListSnapshots", call.query).sandbox)


async def list_of_sandbox(services: Services, call: Call) -> Reply:
    services.sandboxes.get(call.principal, call.path["sandbox_id"])
    return _page(services, call, call.path["sandbox_id"])


def _page(services: Services, call: Call, sandbox_id: str | None) -> Reply:
    query = cast("ListSnapshots", call.query)
    wanted = SnapshotFilter(
        owner=visible_owner(call.principal, getattr(query, "owner", None)),
        sandbox_id=sandbox_id,
        name=query.name,
        labels=dict(split_label(label) for label in query.label),
    )
    rows, next_page = services.snapshots.library.some(wanted, query.limit, query.page)
    return Reply(Page[Snapshot](items=[row.to_model() for row in rows], next_page=next_page))


async def tree(services: Services, call: Call) -> Reply:
    sandbox_id = services.sandboxes.get(call.principal, call.path["sandbox_id"]).id
    return Reply(services.snapshots.library.tree(sandbox_id))


async def get(services: Services, call: Call) -> Reply:
    return Reply(services.snapshots.library.get(call.principal, call.path["snapshot"]).to_model())


async def delete(services: Services, call: Call) -> Reply:
    return Reply((await services.snapshots.library.delete(call.principal, call.path["snapshot"])).to_model())


async def restore(services: Services, call: Call) -> Reply:
    wanted = cast("Restore", call.body)
    row = await services.snapshots.restore(call.principal, call.path["sandbox_id"], wanted.snapshot)
    return Reply(row.to_model())


async def fork(services: Services, call: Call) -> Reply:
    repeated, wanted = services.snapshots.repeated, cast("Fork", call.body)
    result = await repeated.fork(call.principal, call.path["sandbox_id"], wanted, call.idempotency_key)
    return Reply(result, status=201)


async def compare(services: Services, call: Call) -> Reply:
    return Reply(await services.snapshots.compare(call.principal, cast("Compare", call.body)))


async def export(services: Services, call: Call) -> Reply:
    name, parts = await services.snapshots.export(call.principal, call.path["snapshot"])
    headers = {"Content-Disposition": f'attachment; filename="{name}.tar"'}
    return Reply(parts, content_type="application/x-tar", headers=headers)


async def open_import(services: Services, call: Call) -> BodySink:
    return services.snapshots.open_import(call.principal, cast("NewName", call.query).name)
