"""A small server that plays docs/protocol.md, with its faults, for tests of the SDK and the CLI.

The code of a run is a list of orders: see `played_run`.

Faults: `App.faults` is a list; each request takes the first fault whose ``method`` and ``path`` (a part of it) fit.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import tornado.httpserver
import tornado.iostream
import tornado.netutil
import tornado.web
from lifecycle_app import PlayedLives, check_epoch, lifecycle_answer
from played_run import NOW, PlayedRun, play

from cloche import models
from cloche.errors import ClocheError, Conflict, Gone, InternalError, NotFound, Unauthenticated
from cloche.journal import Gap, Journal
from cloche.journal_feed import JournalFeed

KEY = "test-key"


@dataclass
class Fault:
    """What goes wrong with one request.

    ``kind``: ``refuse`` (closed before anything is done), ``forget`` (done, closed instead of answered), ``cut`` (the
    stream is closed after ``after_bytes``), ``error`` (``answer`` is sent), ``html`` (502 of a proxy), ``nonsense``
    (200, not of the protocol), ``silent`` (no answer until the app ends), ``late`` (done, then the same).
    """

    kind: str
    method: str = ""
    path: str = ""
    after_bytes: int = 0
    answer: ClocheError | None = None


@dataclass
class App:
    """State of the server; everything but ``faults`` and ``log`` belongs to its loop."""

    faults: list[Fault] = field(default_factory=list)
    log: list[tuple[str, str]] = field(default_factory=list)
    nodelay: list[bool] = field(default_factory=list)
    connections: set[Any] = field(default_factory=set)
    sandboxes: dict[str, models.Sandbox] = field(default_factory=dict)
    by_key: dict[str, str] = field(default_factory=dict)
    contexts: dict[tuple[str, str], models.Context] = field(default_factory=dict)
    runs: dict[tuple[str, str, str], PlayedRun] = field(default_factory=dict)
    keys: list[models.Key] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    executed: list[str] = field(default_factory=list)
    finished: asyncio.Event = field(default_factory=asyncio.Event)
    volumes: dict[str, models.Volume] = field(default_factory=dict)
    cpu_s: float = 0.0
    lives: PlayedLives = field(default_factory=PlayedLives)

    def take_fault(self, method: str, path: str) -> Fault | None:
        for fault in self.faults:
            if fault.method in ("", method) and fault.path in path:
                self.faults.remove(fault)
                return fault
        return None

    def create_sandbox(self, body: models.SandboxCreate, key: str | None) -> models.Sandbox:
        if key is not None and key in self.by_key:
            return self.sandboxes[self.by_key[key]]
        if body.name is not None and any(s.name == body.name for s in self.sandboxes.values()):
            raise Conflict(f"the name {body.name} is in use")
        sandbox_id = "".join(random.Random(len(self.sandboxes)).choices("abcdefghij0123456789", k=20))
        sandbox = models.Sandbox(
            id=sandbox_id,
            name=body.name,
            owner="me",
            state=models.SandboxState.RUNNING,
            image=body.image,
            image_digest="sha256:0",
            driver=body.driver or "gvisor",
            isolation="a played one",
            capabilities=[],
            epoch="e1",
            resources=body.resources,
            sudo=body.sudo,
            env=list(body.env),
            labels=body.labels,
            metadata=body.metadata,
            created_at=NOW,
            started_at=NOW,
            lifecycle=body.lifecycle,
            lifetime=models.Lifetime(idle_at=None, ends_at=None),
            last_activity_at=NOW,
            origin=origin_of(body),
            parent=body.snapshot,
            volumes=body.volumes,
        )
        self.sandboxes[sandbox_id] = sandbox
        if key is not None:
            self.by_key[key] = sandbox_id
        return sandbox

    def sandbox(self, sandbox_id: str) -> models.Sandbox:
        found = self.sandboxes.get(sandbox_id)
        if found is None:
            raise NotFound(f"no sandbox {sandbox_id}", details={"kind": "sandbox", "id": sandbox_id})
        if found.state is models.SandboxState.DELETED:
            raise Gone(f"the sandbox {sandbox_id} was deleted")
        return found

    def volume(self, reference: str) -> models.Volume:
        found = next((v for v in self.volumes.values() if reference in (v.id, v.name)), None)
        if found is None:
            raise NotFound(f"there is no volume {reference}", details={"kind": "volume", "id": reference})
        attached = [
            s.id
            for s in self.sandboxes.values()
            if s.state is not models.SandboxState.DELETED and {a.volume for a in s.volumes} & {found.id, found.name}
        ]
        return found.model_copy(update={"attached_to": attached})

    def create_volume(self, body: models.VolumeCreate) -> models.Volume:
        if any(volume.name == body.name for volume in self.volumes.values()):
            raise Conflict(f"a volume named {body.name!r} exists already")
        volume = models.Volume(
            id=f"vol-{len(self.volumes):012d}",
            owner="me",
            used_bytes=8192,
            attached_to=[],
            created_at=NOW,
            **body.model_dump(),
        )
        self.volumes[volume.id] = volume
        return volume

    def delete_volume(self, reference: str) -> models.Volume:
        found = self.volume(reference)
        if found.attached_to:
            raise Conflict(f"attached to {found.attached_to}", details={"sandboxes": [*found.attached_to]})
        return self.volumes.pop(found.id)

    def usage(self, sandbox: models.Sandbox) -> models.Usage:
        """Half a core, as the clock of this server goes: each question comes a second after the one before."""
        self.cpu_s += 0.5
        return models.Usage(
            sandbox_id=sandbox.id,
            cpu_s=self.cpu_s,
            memory_bytes=100 * 1024 * 1024,
            memory_peak_bytes=200 * 1024 * 1024,
            memory_mb_s=1234.5,
            disk_bytes=5 * 1024 * 1024,
            uplink_received_bytes=1000,
            uplink_sent_bytes=2000,
            processes=7,
            running_s=60.0,
            as_of=NOW + timedelta(seconds=2 * self.cpu_s),
        )

    def make_context(self, sandbox_id: str, body: models.ContextCreate, context_id: str) -> models.Context:
        context = models.Context(
            id=context_id,
            name=body.name,
            language="python",
            cwd=body.cwd,
            env=list(body.env),
            limits=body.limits,
            restart_policy=body.restart_policy,
            interrupt_grace_s=body.interrupt_grace_s,
            state=models.ContextState.IDLE,
            generation=1,
            execution_count=0,
            queue=[],
            created_at=NOW,
            last_activity_at=NOW,
        )
        self.contexts[sandbox_id, context_id] = context
        return context

    def context(self, sandbox_id: str, context_id: str) -> models.Context:
        self.sandbox(sandbox_id)
        found = self.contexts.get((sandbox_id, context_id))
        if found is None and context_id == "default":
            return self.make_context(sandbox_id, models.ContextCreate(), "default")
        if found is None:
            raise NotFound(f"no context {context_id}", details={"kind": "context", "id": context_id})
        return found

    def played(self, sandbox_id: str, context_id: str, run_id: str) -> PlayedRun:
        self.context(sandbox_id, context_id)
        found = self.runs.get((sandbox_id, context_id, run_id))
        if found is None:
            raise NotFound(f"no run {run_id}", details={"kind": "run", "id": run_id})
        return found

    def start_run(self, sandbox_id: str, context_id: str, body: models.RunCreate) -> PlayedRun:
        context = self.context(sandbox_id, context_id)
        run_id = body.id or f"run-{len(self.runs):012d}"
        known = self.runs.get((sandbox_id, context_id, run_id))
        if known is not None:
            if known.body != body:
                raise Conflict(f"the run {run_id} has another body", details={"kind": "run", "id": run_id})
            return known
        journal = Journal("epoch1", max_bytes=4 * 1024 * 1024, max_records=10_000)
        run = models.Run(
            id=run_id,
            context_id=context.id,
            generation=1,
            state=models.RunState.RUNNING,
            status=None,
            code=body.code,
            execution_count=len(self.runs) + 1,
            outputs=[],
            created_at=NOW,
            started_at=NOW,
            finished_at=None,
            duration_s=None,
            cursor=str(journal.start),
        )
        played = PlayedRun(body, run, JournalFeed(journal))
        self.runs[sandbox_id, context_id, run_id] = played
        self.executed.append(body.code)
        played.task = asyncio.ensure_future(play(played))
        return played


def origin_of(body: models.SandboxCreate) -> models.Origin:
    if body.template is not None:
        return models.Origin(kind="template", id=body.template, warm=body.warm)
    return models.Origin() if body.snapshot is None else models.Origin(kind="snapshot", id=body.snapshot)


class Handler(tornado.web.RequestHandler):
    """Every route: `table` finds what to do."""

    app: App

    def initialize(self, app: App) -> None:
        self.app = app

    async def prepare(self) -> None:
        stream = self.request.connection.stream
        self.app.connections.add(stream)
        self.app.nodelay.append(bool(stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)))
        self.app.log.append((self.request.method or "", self.request.uri or ""))
        self.fault = self.app.take_fault(self.request.method or "", self.request.uri or "")
        if self.fault is not None and self.fault.kind != "cut":
            await self.misbehave(self.fault)

    async def misbehave(self, fault: Fault) -> None:
        match fault.kind:
            case "refuse":
                self.request.connection.stream.close()
                raise tornado.web.Finish
            case "error":
                assert fault.answer is not None
                self.send_error_body(fault.answer)
            case "html":
                self.set_status(502)
                await self.finish("<html>Bad gateway</html>")
            case "nonsense":
                await self.finish('{"hello": "world"}')
            case "silent":
                await self.app.finished.wait()
                self.request.connection.stream.close()
                raise tornado.web.Finish

    def send_error_body(self, error: ClocheError) -> None:
        self.set_status(error.status)
        self.set_header("Content-Type", "application/json")
        self.finish(error.to_body("req-1").model_dump_json())

    async def get(self, path: str) -> None:
        await self.serve(path)

    post = put = delete = patch = get

    async def serve(self, path: str) -> None:
        if self._finished:
            return
        try:
            if path != "health" and self.request.headers.get("Authorization") != f"Bearer {KEY}":
                raise Unauthenticated("no such key")
            answer = await self.route(path.split("/"))
        except ClocheError as error:
            self.send_error_body(error)
            return
        except ValueError as error:
            self.send_error_body(InternalError(f"the test's app: {error}"))
            return
        if self.fault is not None and self.fault.kind == "forget":
            self.request.connection.stream.close()
            raise tornado.web.Finish
        if self.fault is not None and self.fault.kind == "late":
            await self.app.finished.wait()
        if answer is not None:
            status, model = answer
            self.set_status(status)
            if isinstance(model, bytes):
                self.finish(model)
                return
            self.set_header("Content-Type", "application/json")
            self.finish(model.model_dump_json())

    async def route(self, parts: list[str]) -> tuple[int, Any] | None:  # noqa: PLR0911
        app, method = self.app, self.request.method
        match (method, *parts):
            case ("GET", "health"):
                return 200, models.Health(status="ok")
            case ("GET", "info"):
                report = models.DriverReport(
                    name="gvisor", works=True, isolation="played", version="1", capabilities=["memory_snapshot"]
                )
                return 200, models.Info(
                    version="0.1.0", default_driver="gvisor", drivers=[report], owner="me", role="admin"
                )
            case ("GET", "images"):
                image = models.Image(name="python", digest="sha256:0", created_at=NOW, size_bytes=5_000_000)
                return 200, models.ImageList(images=[image])
            case ("POST", "keys"):
                body = models.KeyCreate.model_validate_json(self.request.body)
                key = models.Key(id=f"key-{len(app.keys):012d}", **body.model_dump(), created_at=NOW, revoked_at=None)
                app.keys.append(key)
                return 201, models.NewKey(**key.model_dump(), secret="clk-secret")
            case ("GET", "keys"):
                return 200, models.Page[models.Key](items=app.keys)
            case ("DELETE", "keys", key_id):
                found = next((key for key in app.keys if key.id == key_id), None)
                if found is None:
                    raise NotFound(f"no key {key_id}")
                return 200, found.model_copy(update={"revoked_at": NOW})
            case ("POST", "sandboxes"):
                app.bodies.append(json.loads(self.request.body))
                create = models.SandboxCreate.model_validate_json(self.request.body)
                return 201, app.create_sandbox(create, self.request.headers.get("Idempotency-Key"))
            case ("GET", "sandboxes"):
                return 200, self.sandbox_page()
            case ("GET", "sandboxes", "by-name", name):
                named = next((s for s in app.sandboxes.values() if s.name == name), None)
                if named is None:
                    raise NotFound(f"no sandbox named {name}")
                return 200, named
            case ("GET", "sandboxes", sandbox_id):
                return 200, app.sandbox(sandbox_id)
            case ("PATCH", "sandboxes", sandbox_id):
                update = models.SandboxUpdate.model_validate_json(self.request.body)
                changes = {
                    name: value for name, value in update if value is not None or name in update.model_fields_set
                }
                app.sandboxes[sandbox_id] = app.sandbox(sandbox_id).model_copy(update=changes)
                return 200, app.sandboxes[sandbox_id]
            case ("DELETE", "sandboxes", sandbox_id):
                gone = app.sandbox(sandbox_id).model_copy(update={"state": models.SandboxState.DELETED})
                app.sandboxes[sandbox_id] = gone
                return 200, gone
            case ("GET", "sandboxes", sandbox_id, "usage"):
                return 200, app.usage(app.sandbox(sandbox_id))
            case ("GET", "usage"):
                alive = [s for s in reversed(app.sandboxes.values()) if s.state is not models.SandboxState.DELETED]
                return 200, models.Page[models.Usage](items=[app.usage(s) for s in alive])
            case ("POST", "volumes"):
                app.bodies.append(json.loads(self.request.body))
                return 201, app.create_volume(models.VolumeCreate.model_validate_json(self.request.body))
            case ("GET", "volumes"):
                return 200, models.Page[models.Volume](items=[app.volume(key) for key in reversed(app.volumes)])
            case ("GET", "volumes", reference):
                return 200, app.volume(reference)
            case ("DELETE", "volumes", reference):
                return 200, app.delete_volume(reference)
            case (_, "sandboxes", sandbox_id, "contexts", *rest):
                check_epoch(app.sandbox(sandbox_id), self.request.headers.get("Cloche-Epoch"))
                return await self.context_route(sandbox_id, rest)
        answer = lifecycle_answer(self, *parts)
        if answer is not None:
            return answer
        raise NotFound(f"no route {parts}")

    def sandbox_page(self) -> models.Page[models.Sandbox]:
        """Two a page, to exercise paging."""
        wanted = dict(label.split("=", 1) for label in self.get_arguments("label"))
        state, name = self.get_argument("state", None), self.get_argument("name", None)
        fits = [
            s
            for s in reversed(self.app.sandboxes.values())
            if wanted.items() <= s.labels.items()
            and name in (None, s.name)
            and (state == s.state if state is not None else s.state is not models.SandboxState.DELETED)
        ]
        start = int(self.get_argument("page", "0"))
        size = min(2, int(self.get_argument("limit", "50")))
        more = str(start + size) if start + size < len(fits) else None
        return models.Page[models.Sandbox](items=fits[start : start + size], next_page=more)

    async def context_route(  # noqa: PLR0911
        self, sandbox_id: str, rest: list[str]
    ) -> tuple[int, models.Model] | None:
        app, method = self.app, self.request.method
        match (method, *rest):
            case ("POST",):
                body = models.ContextCreate.model_validate_json(self.request.body)
                return 201, app.make_context(sandbox_id, body, f"ctx-{len(app.contexts):012d}")
            case ("GET",):
                app.sandbox(sandbox_id)
                found = [context for (owner, _), context in app.contexts.items() if owner == sandbox_id]
                return 200, models.Page[models.Context](items=found)
            case ("GET", context_id):
                return 200, app.context(sandbox_id, context_id)
            case ("DELETE", context_id):
                context = app.context(sandbox_id, context_id)
                del app.contexts[sandbox_id, context_id]
                return 200, context
            case ("POST", context_id, "interrupt"):
                for (owner, of, _), played in app.runs.items():
                    if (owner, of) == (sandbox_id, context_id) and played.task is not None:
                        played.task.cancel()
                return 200, app.context(sandbox_id, context_id)
            case ("POST", context_id, "restart"):
                context = app.context(sandbox_id, context_id)
                return 200, context.model_copy(update={"generation": context.generation + 1})
            case ("POST", context_id, "complete"):
                app.context(sandbox_id, context_id)
                return 200, models.CompleteReply(matches=["print"], cursor_start=0, cursor_end=2, types=["function"])
            case ("POST", context_id, "inspect"):
                return 200, models.InspectReply(found=True, data={"text/plain": "docs"})
            case ("GET", context_id, "history"):
                entry = models.HistoryEntry(generation=1, execution_count=1, run_id=None, code="1+1")
                return 200, models.History(entries=[entry])
            case ("GET", context_id, "variables"):
                return 200, models.Variables(variables=[], truncated=False)
            case ("POST", context_id, "runs"):
                run_body = models.RunCreate.model_validate_json(self.request.body)
                return await self.run_answer(app.start_run(sandbox_id, context_id, run_body), "30")
            case ("GET", context_id, "runs"):
                return 200, models.RunList(runs=[])
            case ("GET", context_id, "runs", run_id):
                return await self.run_answer(app.played(sandbox_id, context_id, run_id), "0")
            case ("GET", context_id, "runs", run_id, "events"):
                with suppress(tornado.iostream.StreamClosedError):
                    await self.send_events(app.played(sandbox_id, context_id, run_id))
                return None
            case ("POST", context_id, "runs", run_id, "interrupt"):
                played = app.played(sandbox_id, context_id, run_id)
                if played.task is not None:
                    played.task.cancel()
                    await asyncio.sleep(0)
                return 200, played.run
            case ("POST", context_id, "runs", run_id, "input"):
                played = app.played(sandbox_id, context_id, run_id)
                if played.line is None or played.line.done():
                    raise Conflict(f"the run {run_id} waits for no input")
                played.line.set_result(models.InputReply.model_validate_json(self.request.body).text)
                return 200, played.run
        raise NotFound(f"no route {rest}")

    async def run_answer(self, played: PlayedRun, default_wait: str) -> tuple[int, models.Run]:
        with suppress(TimeoutError):
            await asyncio.wait_for(played.done.wait(), float(self.get_argument("wait_s", default_wait)) or 0.001)
        return (200 if played.done.is_set() else 202), played.run

    async def send_events(self, played: PlayedRun) -> None:
        cursor = self.request.headers.get("Last-Event-ID") or self.get_argument("cursor", None)
        self.set_header("Content-Type", "text/event-stream")
        start = played.feed.journal.parse(cursor)
        left = self.fault.after_bytes if self.fault is not None else None
        async for item in played.feed.follow(start):
            frame = frame_of(item)
            if left is not None and len(frame) > left:
                self.write(frame[:left])
                await self.flush()
                self.request.connection.stream.close()
                raise tornado.web.Finish
            left = left - len(frame) if left is not None else None
            self.write(frame)
            await self.flush()


def frame_of(item: Any) -> bytes:
    if isinstance(item, Gap):
        kind, data = "gap", json.dumps({"records": item.records, "bytes": item.bytes})
    else:
        kind, data = item.kind, item.data.decode()
    return f"id: {item.cursor}\nevent: {kind}\ndata: {data}\n\n".encode()


class Server:
    """The app in a thread of its own, on a free loopback port."""

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        self._ready.wait()

    async def _main(self) -> None:
        self.app = App()
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        application = tornado.web.Application([(r"/v1/(.*)", Handler, {"app": self.app})], log_function=lambda _: None)
        self._http = tornado.httpserver.HTTPServer(application)
        (self._socket,) = tornado.netutil.bind_sockets(0, "127.0.0.1")
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._http.add_sockets([self._socket])
        self._ready.set()
        await self._stop.wait()
        self.app.finished.set()
        self._http.stop()
        await self._http.close_all_connections()
        tasks = [played.task for played in self.app.runs.values() if played.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def call(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """Run ``work`` in the app's loop."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(60)

    def close_connections(self) -> None:
        """As a killed server would."""

        async def work() -> None:
            for connection in self.app.connections:
                connection.close()

        self.call(work)

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)


if __name__ == "__main__":
    server = Server()
    print(server.url, flush=True)
    threading.Event().wait()
