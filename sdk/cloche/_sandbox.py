"""Sandboxes: isolated machines that keep living between calls. `Sandbox` blocks, `AsyncSandbox` awaits."""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeAlias, TypedDict, TypeVar, Unpack

from pydantic import JsonValue

from cloche import _calls, _preview_calls, _volume_calls, models
from cloche._answers import built
from cloche._client import AsyncClient, Client
from cloche._context import ContextFlows
from cloche._contexts import DEFAULT_CONTEXT, AsyncContexts, Contexts
from cloche._files import AsyncFiles, Files
from cloche._flow import Flow, awaiting, blocking, send, send_patiently
from cloche._forks import AsyncForkResult, ForkResult, outcome_of
from cloche._ids import new_idempotency_key
from cloche._lifecycle import ForkOptions, LifecycleFlows, LifecycleOption
from cloche._patience import Patience
from cloche._previews import AsyncPreview, Preview, open_preview_flow
from cloche._processes import AsyncProcesses, AsyncServices, ExecFlows, Processes, Services
from cloche._snapshots import SnapshotLike, reference_of
from cloche._tail import Tail
from cloche._terminals import AsyncTerminals, Terminals
from cloche._volumes import VolumesOption, attachments
from cloche.errors import ClocheError, ConnectionFailed, Gone, NotFound, WaitTimeout
from cloche.models import Event, Resources, SandboxCreate

_SANDBOX_ID: Final = re.compile(r"[a-z0-9]{20}")


class CreateOptions(TypedDict, total=False):
    """What a new sandbox is to be; what is left out or None is the server's default.

    ``driver``: None is the strongest that works there. ``resources``: a `cloche.models.Resources`, or a mapping with
    some of ``cpus``, ``memory_mb``, ``max_processes``, ``disk_mb``. ``env``: of everything started in it. ``labels``
    select in lists, ``metadata`` is only carried. ``volumes``: path in the sandbox -> name or id of a volume, or a list of
    `cloche.models.VolumeAttachment`. ``sudo``: false leaves no way to become root inside.
    ``snapshot``: a `cloche.models.Snapshot`, its id or its name; ``template``: ``name`` or ``name@version``. With one of them
    image, driver, resources and sudo are what was saved, and ``env`` is added to that. ``lifecycle``: a
    `cloche.models.LifecyclePolicy`, or a mapping with some of its fields. ``warm``: false takes none out of a pool.
    ``idempotency_key``: creates with the same key make one sandbox; by default each create has its own, so that a
    create repeated after a lost connection makes one sandbox.
    """

    name: str | None
    driver: str | None
    resources: Resources | Mapping[str, float] | None
    env: Mapping[str, str] | None
    labels: Mapping[str, str] | None
    metadata: Mapping[str, JsonValue] | None
    volumes: VolumesOption | None
    sudo: bool | None
    snapshot: SnapshotLike | None
    template: str | None
    lifecycle: LifecycleOption | None
    warm: bool | None
    idempotency_key: str | None


def create_flow(image: str | None, options: CreateOptions, patience: Patience) -> Flow[models.Sandbox]:
    """Make one sandbox, however often the connection is lost meanwhile."""
    fields: dict[str, Any] = {"image": image, **options}
    fields["volumes"] = attachments(fields.get("volumes"))
    if (snapshot := fields.get("snapshot")) is not None:
        fields["snapshot"] = reference_of(snapshot)
    key = fields.pop("idempotency_key", None) or new_idempotency_key()
    return (yield from send_patiently(_calls.create_sandbox(built(SandboxCreate, **fields), key), patience))


def find_flow(id_or_name: str, patience: Patience) -> Flow[models.Sandbox]:
    """The sandbox with this id, else the one with this name."""
    if _SANDBOX_ID.fullmatch(id_or_name):
        try:
            return (yield from send_patiently(_calls.sandbox(id_or_name), patience))
        except NotFound:
            pass  # an id is also a possible name
    return (yield from send_patiently(_calls.sandbox_by_name(id_or_name), patience))


FindFlow: TypeAlias = Callable[[Patience], Flow[models.Sandbox]]

P = ParamSpec("P")
T = TypeVar("T")


def in_default_context(
    flow: Callable[Concatenate[ContextFlows, P], Flow[T]],
) -> Callable[Concatenate[SandboxFlows, P], Flow[T]]:
    """A flow of a context as one of a sandbox, in its context ``default``."""

    @functools.wraps(flow)
    def in_default(self: SandboxFlows, /, *args: P.args, **kwargs: P.kwargs) -> Flow[T]:
        return flow(ContextFlows(self.id, DEFAULT_CONTEXT, None, self._patience), *args, **kwargs)

    return in_default


def of_sandbox(
    flow: Callable[Concatenate[ExecFlows, P], Flow[T]],
) -> Callable[Concatenate[SandboxFlows, P], Flow[T]]:
    """A flow of `ExecFlows` as one of a sandbox."""

    @functools.wraps(flow)
    def of_this(self: SandboxFlows, /, *args: P.args, **kwargs: P.kwargs) -> Flow[T]:
        return flow(ExecFlows(self.id, self._patience), *args, **kwargs)

    return of_this


class SandboxFlows(LifecycleFlows):
    """What can be done with a sandbox, as flows."""

    def _delete(self) -> Flow[None]:
        """End the sandbox and remove everything of it.

        :raises Gone: it was deleted before.
        """
        call = _calls.delete_sandbox(self.id)
        try:
            self._keep((yield from send(call)))
        except (ConnectionFailed, WaitTimeout) as error:
            if error.details.get("reached_before") is not True:
                raise
            yield from self._delete_again(replace(call, repeatable=True))

    def _delete_again(self, call: _calls.Call[models.Sandbox]) -> Flow[None]:
        """The outcome of the first delete is unknown: that it is gone now is what was wanted."""
        try:
            self._keep((yield from send_patiently(call, self._patience)))
        except (Gone, NotFound):
            return

    _run = in_default_context(ContextFlows._run)
    _exec = of_sandbox(ExecFlows._exec)

    def _tail(self, cursor: str | None) -> Tail:
        path = f"{_calls.sandbox_path(self.id)}/events"
        return Tail(path, cursor=cursor, last_type=None, patience=self._patience)

    def _ports(self) -> Flow[list[models.ListeningPort]]:
        """The TCP ports that programs in the sandbox listen on, by number."""
        return (yield from send_patiently(_preview_calls.ports(self.id), self._patience)).items

    def _usage(self) -> Flow[models.Usage]:
        """What the sandbox has cost in all its lives. Asking does not wake it."""
        return (yield from send_patiently(_volume_calls.usage(self.id), self._patience))

    def _list_previews(self) -> Flow[list[models.Preview]]:
        call = _preview_calls.previews(self.id)
        return (yield from send_patiently(call, self._patience)).items

    def _delete_if_there(self) -> Flow[None]:
        try:
            yield from self._delete()
        except (Gone, NotFound):
            return


class Sandbox(SandboxFlows):
    """An isolated machine with live contexts. Made by `create` or `connect`.

    As a context manager: leaving deletes a sandbox that was made here, and only disconnects from one that was not.
    """

    def __init__(self, client: Client, info: models.Sandbox, *, created_here: bool, owns_client: bool) -> None:
        super().__init__(info, client._link.patience)
        self._client = client
        self._link = client._link.of_life(self._life)
        self._created_here = created_here
        self._owns_client = owns_client
        if owns_client:
            client._users.join(self)
        self.contexts = Contexts(self._link, info.id)
        self.files = Files(self._link, info.id)
        self.terminals = Terminals(self._link, info.id)
        self.processes = Processes(self._link, info.id)
        self.services = Services(self._link, info.id)

    @classmethod
    def create(
        cls, image: str | None = None, *, client: Client | None = None, **options: Unpack[CreateOptions]
    ) -> Self:
        """Make a sandbox and return when it runs.

        :param image: name or digest; None: the server's default, ``python``.
        :param client: use its connections and key; None: a client with the settings of the environment.
        :param options: see `CreateOptions`.
        """
        return cls._opened(partial(create_flow, image, options), client, created_here=True)

    @classmethod
    def connect(cls, id_or_name: str, *, client: Client | None = None) -> Self:
        """A handle for a sandbox that exists.

        :raises NotFound: this key's owner has no such sandbox.
        :raises Gone: it was deleted.
        """
        return cls._opened(partial(find_flow, id_or_name), client, created_here=False)

    @classmethod
    def _opened(cls, flow: FindFlow, client: Client | None, *, created_here: bool) -> Self:
        chosen = client or Client()
        try:
            info = chosen._link.drive(flow(chosen._link.patience))
        except BaseException:
            if client is None:
                chosen.close()
            raise
        return cls(chosen, info, created_here=created_here, owns_client=client is None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            if self._created_here:
                self._link.drive(self._delete_if_there())
        except ClocheError:
            if error is None:  # else the error on its way says more
                raise
        finally:
            self.close()

    def close(self) -> None:
        """Disconnect. The sandbox goes on."""
        if self._owns_client and self._client._users.leave(self):
            self._client.close()

    def events(self, cursor: str | None = None) -> Generator[Event, None, None]:
        """What happens in the sandbox: processes, contexts, services, limits that are hit. Never ends by itself.

        Reconnects, and neither repeats nor leaves out an event. The types are in docs/processes.md.
        """
        return self._link.follow(self._tail(cursor))

    def preview(self, port: int, public: bool = False, *, ttl_s: int | None = None) -> Preview:
        """A URL for a port of the sandbox, and a token that lets whoever has it in for a day.

        The program may begin to listen later. Calling it again changes what is given.

        :param public: everybody who can reach the server gets in, without a token.
        :param ttl_s: seconds until the preview itself ends; None: with the sandbox.
        """
        flow = open_preview_flow(self.id, port, public, ttl_s, self._patience)
        return Preview(self._link, *self._link.drive(flow))

    def previews(self) -> list[Preview]:
        """All previews of this sandbox, by port, without tokens."""
        return [Preview(self._link, info) for info in self._link.drive(self._list_previews())]

    def fork(self, count: int = 1, **options: Unpack[ForkOptions]) -> ForkResult[Sandbox]:
        """More sandboxes from this instant: each with the files, variables, processes and terminals of this one.

        This one goes on. The children belong to this handle's client, and are deleted like sandboxes that were created:
        by ``with child``, by ``with sandbox.fork(3) as children``, or one by one.

        :param count: how many, at most 100.
        :param options: see `ForkOptions`.
        :raises UnsupportedCapability: the driver cannot save memory, and ``memory=False`` was not given.
        :raises ClocheError: there was one child to be, and it failed. Of several, each has its own outcome.
        """
        done = self._link.drive(self._forked(count, options))
        children = [self._child(outcome_of(child)) for child in done.children]
        result = ForkResult(children, done.paused_s, done.ready_s)
        return result.raise_for_errors() if count == 1 else result

    def _child(self, outcome: models.Sandbox | ClocheError) -> Sandbox | ClocheError:
        if isinstance(outcome, ClocheError):
            return outcome
        return Sandbox(self._client, outcome, created_here=True, owns_client=self._owns_client)

    ports = blocking(SandboxFlows._ports)
    usage = blocking(SandboxFlows._usage)
    run = blocking(SandboxFlows._run)
    exec = blocking(SandboxFlows._exec)
    refresh = blocking(SandboxFlows._refresh)
    update = blocking(SandboxFlows._update)
    delete = blocking(SandboxFlows._delete)
    pause = blocking(SandboxFlows._pause)
    suspend = blocking(SandboxFlows._suspend)
    stop = blocking(SandboxFlows._stop)
    resume = blocking(SandboxFlows._resume)
    snapshot = blocking(SandboxFlows._snapshot)
    snapshots = blocking(SandboxFlows._snapshots)
    snapshot_tree = blocking(SandboxFlows._snapshot_tree)
    restore = blocking(SandboxFlows._restore)


S = TypeVar("S", bound="AsyncSandbox")


class AsyncSandbox(SandboxFlows):
    """An isolated machine with live contexts. Made by `create` or `connect`.

    As a context manager: leaving deletes a sandbox that was made here, and only disconnects from one that was not.
    ``async with AsyncSandbox.create() as sandbox`` and ``sandbox = await AsyncSandbox.create()`` both work.
    """

    def __init__(self, client: AsyncClient, info: models.Sandbox, *, created_here: bool, owns_client: bool) -> None:
        super().__init__(info, client._link.patience)
        self._client = client
        self._link = client._link.of_life(self._life)
        self._created_here = created_here
        self._owns_client = owns_client
        if owns_client:
            client._users.join(self)
        self.contexts = AsyncContexts(self._link, info.id)
        self.files = AsyncFiles(self._link, info.id)
        self.terminals = AsyncTerminals(self._link, info.id)
        self.processes = AsyncProcesses(self._link, info.id)
        self.services = AsyncServices(self._link, info.id)

    @classmethod
    def create(
        cls, image: str | None = None, *, client: AsyncClient | None = None, **options: Unpack[CreateOptions]
    ) -> Opening[Self]:
        """Make a sandbox; it runs when the wait is over. Parameters as in `Sandbox.create`."""
        flow = partial(create_flow, image, options)
        return Opening(lambda: cls._opened(flow, client, created_here=True))

    @classmethod
    def connect(cls, id_or_name: str, *, client: AsyncClient | None = None) -> Opening[Self]:
        """A handle for a sandbox that exists. Errors as in `Sandbox.connect`."""
        return Opening(lambda: cls._opened(partial(find_flow, id_or_name), client, created_here=False))

    @classmethod
    async def _opened(cls, flow: FindFlow, client: AsyncClient | None, *, created_here: bool) -> Self:
        chosen = client or AsyncClient()
        try:
            info = await chosen._link.drive(flow(chosen._link.patience))
        except BaseException:
            if client is None:
                await chosen.close()
            raise
        return cls(chosen, info, created_here=created_here, owns_client=client is None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            if self._created_here:
                await self._link.drive(self._delete_if_there())
        except ClocheError:
            if error is None:  # else the error on its way says more
                raise
        finally:
            await self.close()

    async def close(self) -> None:
        """Disconnect. The sandbox goes on."""
        if self._owns_client and self._client._users.leave(self):
            await self._client.close()

    def events(self, cursor: str | None = None) -> AsyncGenerator[Event, None]:
        """What happens in the sandbox; see `Sandbox.events`."""
        return self._link.follow(self._tail(cursor))

    async def preview(self, port: int, public: bool = False, *, ttl_s: int | None = None) -> AsyncPreview:
        """A URL for a port of the sandbox; see `Sandbox.preview`."""
        flow = open_preview_flow(self.id, port, public, ttl_s, self._patience)
        return AsyncPreview(self._link, *(await self._link.drive(flow)))

    async def previews(self) -> list[AsyncPreview]:
        """All previews of this sandbox, by port, without tokens."""
        return [AsyncPreview(self._link, info) for info in await self._link.drive(self._list_previews())]

    async def fork(self, count: int = 1, **options: Unpack[ForkOptions]) -> AsyncForkResult[AsyncSandbox]:
        """More sandboxes from this instant of this one; see `Sandbox.fork`."""
        done = await self._link.drive(self._forked(count, options))
        children = [self._child(outcome_of(child)) for child in done.children]
        result = AsyncForkResult(children, done.paused_s, done.ready_s)
        return result.raise_for_errors() if count == 1 else result

    def _child(self, outcome: models.Sandbox | ClocheError) -> AsyncSandbox | ClocheError:
        if isinstance(outcome, ClocheError):
            return outcome
        return AsyncSandbox(self._client, outcome, created_here=True, owns_client=self._owns_client)

    ports = awaiting(SandboxFlows._ports)
    usage = awaiting(SandboxFlows._usage)
    run = awaiting(SandboxFlows._run)
    exec = awaiting(SandboxFlows._exec)
    refresh = awaiting(SandboxFlows._refresh)
    update = awaiting(SandboxFlows._update)
    delete = awaiting(SandboxFlows._delete)
    pause = awaiting(SandboxFlows._pause)
    suspend = awaiting(SandboxFlows._suspend)
    stop = awaiting(SandboxFlows._stop)
    resume = awaiting(SandboxFlows._resume)
    snapshot = awaiting(SandboxFlows._snapshot)
    snapshots = awaiting(SandboxFlows._snapshots)
    snapshot_tree = awaiting(SandboxFlows._snapshot_tree)
    restore = awaiting(SandboxFlows._restore)


class Opening(Awaitable[S]):
    """A sandbox on its way: await it, or enter it."""

    def __init__(self, opened: Callable[[], Awaitable[S]]) -> None:
        self._opened = opened
        self._sandbox: S | None = None

    def __await__(self) -> Generator[Any, None, S]:
        return self._opened().__await__()

    async def __aenter__(self) -> S:
        self._sandbox = await self._opened()
        return self._sandbox

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._sandbox is not None
        await self._sandbox.__aexit__(kind, error, trace)
