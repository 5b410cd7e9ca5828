"""The part of `protocol_app` that plays states, snapshots, forks, templates and pools.

It saves nothing: a snapshot is a name for a sandbox. A fork's child named ``fails`` fails. A template whose setup has the
word ``fail`` fails; the build is over with the third question for it, and prints a line before each.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from cloche import models
from cloche.errors import Conflict, NotFound, SandboxStartFailed, SnapshotBroken, Stale
from cloche.models import SandboxState

if TYPE_CHECKING:
    from protocol_app import App, Handler

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ARCHIVE = b"an archive\n" * 100_000
"""More than one part of a transfer."""

STATES = {"pause": SandboxState.PAUSED, "suspend": SandboxState.SUSPENDED, "stop": SandboxState.STOPPED}


@dataclass
class Build:
    template: models.Template
    asked: int = 0

    @property
    def log(self) -> str:
        return "".join(f"line {number}\n" for number in range(self.asked + 1))


@dataclass
class PlayedLives:
    snapshots: dict[str, models.Snapshot] = field(default_factory=dict)
    builds: dict[tuple[str, int], Build] = field(default_factory=dict)
    pools: dict[str, models.Pool] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    lives: int = 1


def check_epoch(sandbox: models.Sandbox, epoch: str | None) -> None:
    """Of calls into the sandbox; as the server does."""
    if epoch is not None and epoch.partition(".")[0] != sandbox.epoch.partition(".")[0]:
        raise Stale("an earlier life", hint="sandbox.refresh()", details={"epoch": epoch, "now": sandbox.epoch})


def lifecycle_answer(handler: Handler, *parts: str) -> tuple[int, Any] | None:  # noqa: PLR0911
    """The answer of a route; None: it is none of these."""
    app, lives, body = handler.app, handler.app.lives, handler.request.body
    match (handler.request.method, *parts):
        case ("POST", "sandboxes", sandbox_id, "pause" | "suspend" | "stop" | "resume" as what):
            return 200, change(app, sandbox_id, what)
        case ("POST", "sandboxes", sandbox_id, "snapshots"):
            app.bodies.append(json.loads(body))
            wanted = models.SnapshotCreate.model_validate_json(body)
            return 201, once(handler, lambda: save(app, app.sandbox(sandbox_id), wanted))
        case ("GET", "sandboxes", sandbox_id, "snapshots"):
            return 200, page(handler, [s for s in lives.snapshots.values() if s.sandbox_id == sandbox_id])
        case ("GET", "sandboxes", sandbox_id, "snapshots", "tree"):
            return 200, tree(app, sandbox_id)
        case ("POST", "sandboxes", sandbox_id, "restore"):
            wanted = models.Restore.model_validate_json(body).snapshot
            return 200, restore(app, sandbox_id, found_snapshot(app, wanted))
        case ("POST", "sandboxes", sandbox_id, "fork"):
            app.bodies.append(json.loads(body))
            return 201, once(handler, lambda: fork(app, app.sandbox(sandbox_id), models.Fork.model_validate_json(body)))
        case ("GET", "snapshots"):
            of, name = handler.get_argument("sandbox", None), handler.get_argument("name", None)
            found = lives.snapshots.values()
            return 200, page(handler, [s for s in found if of in (None, s.sandbox_id) and name in (None, s.name)])
        case ("POST", "snapshots", "import"):
            if body != ARCHIVE:
                raise SnapshotBroken("not what was saved")
            made = models.SnapshotCreate(name=handler.get_argument("name", None))
            saved = save(app, next(iter(app.sandboxes.values())), made).model_copy(update={"sandbox_id": None})
            lives.snapshots[saved.id] = saved
            return 201, saved
        case ("GET", "snapshots", reference):
            return 200, found_snapshot(app, reference)
        case ("DELETE", "snapshots", reference):
            return 200, lives.snapshots.pop(found_snapshot(app, reference).id)
        case ("GET", "snapshots", reference, "export"):
            found_snapshot(app, reference)
            return 200, ARCHIVE
        case ("POST", "compare"):
            app.bodies.append(json.loads(body))
            return 200, comparison(models.Compare.model_validate_json(body))
    return template_answer(handler, *parts)


def template_answer(handler: Handler, *parts: str) -> tuple[int, Any] | None:  # noqa: PLR0911
    app, lives, body = handler.app, handler.app.lives, handler.request.body
    if handler.get_argument("owner", "me") != "me":
        raise NotFound("all here is mine")
    match (handler.request.method, *parts):
        case ("POST", "templates"):
            app.bodies.append(json.loads(body))
            template = begin(lives, models.TemplateCreate.model_validate_json(body)).template
            return 202 if template.state == "building" else 201, template
        case ("GET", "templates"):
            return 200, models.Page[models.Template](items=[build.template for build in lives.builds.values()])
        case ("GET", "templates", reference, "log"):
            return 200, models.TemplateLog(text=found_build(lives, reference).log, truncated=False)
        case ("GET", "templates", reference, "events"):
            handler.set_header("Content-Type", "text/event-stream")
            return 200, followed(found_build(lives, reference), handler.get_argument("cursor", None))
        case ("GET", "templates", reference):
            return 200, asked(found_build(lives, reference))
        case ("DELETE", "templates", reference):
            build = found_build(lives, reference)
            return 200, lives.builds.pop((build.template.name, build.template.version)).template
        case ("PUT", "pools", name):
            app.bodies.append(json.loads(body))
            lives.pools[name] = pool(name, models.PoolCreate.model_validate_json(body))
            return 200, lives.pools[name]
        case ("GET", "pools"):
            return 200, models.Page[models.Pool](items=list(lives.pools.values()))
        case ("GET" | "DELETE" as method, "pools", name):
            if name not in lives.pools:
                raise NotFound(f"no pool {name}")
            return 200, lives.pools[name] if method == "GET" else lives.pools.pop(name)
        case ("POST", "intents"):
            intent = models.IntentCreate.model_validate_json(body)
            serving = next((p.name for p in lives.pools.values() if p.template == intent.template), None)
            return 202, models.Intent(pool=serving, expires_at=NOW + timedelta(seconds=intent.within_s))
    return None


def once(handler: Handler, make: Callable[[], Any]) -> Any:
    """The same key, the same answer."""
    kept, key = handler.app.lives.kept, handler.request.path + handler.request.headers["Idempotency-Key"]
    if key not in kept:
        kept[key] = make()
    return kept[key]


def change(app: App, sandbox_id: str, what: str) -> models.StateChange:
    """A stopped sandbox has lost its memory: its epoch is another one."""
    before = app.sandbox(sandbox_id)
    state = STATES.get(what, SandboxState.RUNNING)
    epoch = before.epoch
    if what == "stop" and before.state is not state:
        epoch = next_epoch(app)
    if what == "resume" and before.state is SandboxState.SUSPENDED:
        epoch = f"{epoch.partition('.')[0]}.again"
    app.sandboxes[sandbox_id] = before.model_copy(update={"state": state, "epoch": epoch})
    return models.StateChange(
        sandbox_id=sandbox_id, state=state, epoch=epoch, duration_s=0.2, paused_s=0.1 if what == "suspend" else None
    )


def next_epoch(app: App) -> str:
    app.lives.lives += 1
    return f"e{app.lives.lives}"


def save(app: App, sandbox: models.Sandbox, body: models.SnapshotCreate) -> models.Snapshot:
    known = app.lives.snapshots
    if body.name is not None and any(saved.name == body.name for saved in known.values()):
        raise Conflict(f"the name {body.name} is in use")
    saved = models.Snapshot(
        id=f"snap-{len(known):012d}",
        name=body.name,
        owner="me",
        labels=body.labels,
        state="ready",
        sandbox_id=sandbox.id,
        parent=sandbox.parent,
        memory=body.memory is not False,
        driver=sandbox.driver,
        image=sandbox.image,
        image_digest=sandbox.image_digest,
        resources=sandbox.resources,
        volumes=[],
        size_bytes=60 * 1024 * 1024,
        digest="0" * 64,
        paused_s=0.12,
        created_at=NOW,
        expires_at=None,
    )
    known[saved.id] = saved
    app.sandboxes[sandbox.id] = sandbox.model_copy(update={"parent": saved.id})
    return saved


def found_snapshot(app: App, reference: str) -> models.Snapshot:
    found = next((saved for saved in app.lives.snapshots.values() if reference in (saved.id, saved.name)), None)
    if found is None:
        raise NotFound(f"no snapshot {reference}")
    return found


def page(handler: Handler, found: list[models.Snapshot]) -> models.Page[models.Snapshot]:
    """Two a page, newest first."""
    start, newest_first = int(handler.get_argument("page", "0")), found[::-1]
    more = str(start + 2) if start + 2 < len(found) else None
    return models.Page[models.Snapshot](items=newest_first[start : start + 2], next_page=more)


def tree(app: App, sandbox_id: str) -> models.SnapshotTree:
    nodes: dict[str, models.SnapshotNode] = {}
    for saved in app.lives.snapshots.values():
        if saved.sandbox_id == sandbox_id:
            above = nodes.get(saved.parent or "")
            depth = 0 if above is None else above.depth + 1
            nodes[saved.id] = models.SnapshotNode(
                snapshot=saved, parent=saved.parent if above is not None else None, depth=depth
            )
    return models.SnapshotTree(nodes=list(nodes.values()))


def restore(app: App, sandbox_id: str, saved: models.Snapshot) -> models.Sandbox:
    changes = {"epoch": next_epoch(app), "parent": saved.id, "state": SandboxState.RUNNING}
    app.sandboxes[sandbox_id] = app.sandbox(sandbox_id).model_copy(update=changes)
    return app.sandboxes[sandbox_id]


def fork(app: App, source: models.Sandbox, body: models.Fork) -> models.ForkResult:
    children = []
    for index in range(body.count):
        name = body.names[index] if body.names else None
        if name == "fails":
            error = SandboxStartFailed("this one did not start").to_body().model_dump(mode="json")
            children.append(models.ForkChild(index=index, sandbox=None, error=error))
            continue
        made = app.create_sandbox(models.SandboxCreate(name=name, image=source.image), None)
        app.sandboxes[made.id] = made.model_copy(update={"origin": models.Origin(kind="fork", id=source.id)})
        children.append(models.ForkChild(index=index, sandbox=app.sandboxes[made.id]))
    return models.ForkResult(children=children, paused_s=0.15, ready_s=0.9)


def comparison(wanted: models.Compare) -> models.Comparison:
    """One thing of each kind, unless both are the same."""
    if wanted.before == wanted.after:
        return models.Comparison(files=[], variables=[], truncated=False)
    diff = "--- a/b.txt\n+++ b/b.txt\n@@ -1 +1 @@\n-old\tword\n+new \x1b[31mword\n" if wanted.diffs else None
    files = [
        models.FileDifference(path="a\x1b[2J.txt", change="added", before=None, after="1"),
        models.FileDifference(path="b.txt", change="changed", before="1", after="2", diff=diff),
        models.FileDifference(path="c.txt", change="removed", before="1", after=None),
    ]
    one, two = models.VariableValue(type="int", summary="1"), models.VariableValue(type="str", summary="'2'")
    variable = models.VariableDifference(context_id="default", name="x", change="changed", before=one, after=two)
    return models.Comparison(files=files, variables=[variable], truncated=False)


def begin(lives: PlayedLives, spec: models.TemplateCreate) -> Build:
    """The same inputs give the same version; one that failed is built again."""
    of_name = [build for (name, _), build in lives.builds.items() if name == spec.name]
    known = next((build for build in of_name if build.template.spec == spec), None)
    if known is not None and known.template.state != "failed":
        return known
    version = len(of_name) + 1 if known is None else known.template.version
    template = models.Template(
        name=spec.name,
        version=version,
        owner="me",
        state="building",
        spec=spec,
        spec_digest="0" * 64,
        snapshot_id=None,
        created_at=NOW,
        build_s=None,
    )
    lives.builds[spec.name, version] = Build(template)
    return lives.builds[spec.name, version]


def asked(build: Build) -> models.Template:
    build.asked += 1
    if build.template.state == "building" and build.asked >= 3:
        failed = "fail" in build.template.spec.setup
        changes = (
            {"state": "failed", "failure": "setup: the set-up script exited with 3", "build_s": 1.0}
            if failed
            else {"state": "ready", "snapshot_id": "snap-template0000", "build_s": 1.0}
        )
        build.template = build.template.model_copy(update=changes)
    return build.template


def followed(build: Build, cursor: str | None) -> bytes:
    """A line an event, to the end of the build; the first connection is lost in the middle."""
    while build.template.state == "building":
        asked(build)
    lines = build.log.splitlines(keepends=True)
    seen = int((cursor or "a.0.0").split(".")[2])
    frames = [(f"a.0.{n + 1}", "output", {"text": line}) for n, line in enumerate(lines)]
    outcome = {"template": build.template.name, "state": build.template.state, "failure": build.template.failure}
    frames.append((f"a.1.{len(lines)}", "finished", outcome))
    shown = frames[:2] if cursor is None else frames[seen:]
    return "".join(f"id: {at}\nevent: {kind}\ndata: {json.dumps(data)}\n\n" for at, kind, data in shown).encode()


def found_build(lives: PlayedLives, reference: str) -> Build:
    name, _, version = reference.partition("@")
    found = [build for (of, number), build in lives.builds.items() if of == name and version in ("", str(number))]
    if not found:
        raise NotFound(f"no template {reference}")
    return found[-1]


def pool(name: str, body: models.PoolCreate) -> models.Pool:
    stats = models.PoolStats(ready=body.min, filling=0, target=body.min, claims=3, misses=1, broken=0, refill_s=0.25)
    image = None if body.template is not None else body.image or "python"
    fields = {**body.model_dump(), "image": image}
    return models.Pool(name=name, owner="me", stats=stats, created_at=NOW, **fields)
