"""What a sandbox is as a whole, as flows: who it is, its states, its snapshots and forks. `cloche._sandbox` builds on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypedDict

from pydantic import JsonValue

from cloche import _calls, models
from cloche import _lifecycle_calls as _life_calls
from cloche._answers import built
from cloche._flow import Flow, send_patiently
from cloche._ids import new_idempotency_key
from cloche._life import Life
from cloche._pages import all_pages
from cloche._patience import Patience
from cloche._snapshots import RetentionOption, SnapshotLike, reference_of
from cloche.errors import InvalidRequest
from cloche.models import Fork, LifecyclePolicy, Restore, SandboxUpdate, SnapshotCreate

LifecycleOption: TypeAlias = LifecyclePolicy | Mapping[str, object]
"""A `cloche.models.LifecyclePolicy`, or a mapping with some of its fields."""


class ForkOptions(TypedDict, total=False):
    """What the children of a fork are to be; None: as the source.

    ``names`` and ``envs``: one for each child. ``env``: added to the source's environment in all of them, ``envs`` to that.
    ``memory``: False starts them with the files alone, which every driver can; None or True: with everything that runs.
    ``idempotency_key``: forks with the same key are one fork; by default each has its own.
    """

    names: Sequence[str] | None
    env: Mapping[str, str] | None
    envs: Sequence[Mapping[str, str]] | None
    labels: Mapping[str, str] | None
    memory: bool | None
    lifecycle: LifecycleOption | None
    idempotency_key: str | None


class LifecycleFlows:
    """A sandbox as a whole, as flows."""

    def __init__(self, info: models.Sandbox, patience: Patience) -> None:
        self._info = info
        self._patience = patience
        self._life = Life(info.epoch)

    def __repr__(self) -> str:
        name = f" {self._info.name!r}" if self._info.name else ""
        return f"<{type(self).__name__} {self.id}{name} {self._info.state} on {self._info.driver}>"

    @property
    def id(self) -> str:
        """20 lower-case letters and digits."""
        return self._info.id

    @property
    def name(self) -> str | None:
        """As the server last said."""
        return self._info.name

    @property
    def info(self) -> models.Sandbox:
        """What the server last said of this sandbox. See ``refresh``."""
        return self._info

    def _keep(self, info: models.Sandbox) -> models.Sandbox:
        self._info = info
        return info

    def _live_on(self, info: models.Sandbox) -> models.Sandbox:
        """From now on this handle, and all made by it, are of the life that ``info`` tells of."""
        self._life.epoch = info.epoch
        return self._keep(info)

    def _refresh(self) -> Flow[models.Sandbox]:
        """Ask the server for `info` anew. A handle that was `Stale` is up to date afterwards."""
        return self._live_on((yield from send_patiently(_calls.sandbox(self.id), self._patience)))

    def _update(
        self,
        *,
        name: str | None = None,
        no_name: bool = False,
        labels: Mapping[str, str] | None = None,
        metadata: Mapping[str, JsonValue] | None = None,
        lifecycle: LifecycleOption | None = None,
    ) -> Flow[models.Sandbox]:
        """Change name, labels, metadata or lifecycle; None leaves as it is. Each is replaced as a whole.

        :param no_name: it has no name from now on.
        """
        if no_name and name is not None:
            problem = "a name was given, too"
            raise InvalidRequest(f"no_name: {problem}", details={"errors": [{"field": "no_name", "problem": problem}]})
        body = built(SandboxUpdate, name=name, labels=labels, metadata=metadata, lifecycle=lifecycle)
        if no_name:
            body = body.model_copy(update={"name": None})
        return self._keep((yield from send_patiently(_calls.update_sandbox(self.id, body), self._patience)))

    # States

    def _pause(self) -> Flow[models.StateChange]:
        """Freeze it in RAM: it uses no CPU, and goes on in a moment. Its memory stays taken."""
        return (yield from self._change("pause"))

    def _suspend(self) -> Flow[models.StateChange]:
        """Write it to disk, memory included, and free its RAM. The next call wakes it, unless its lifecycle forbids.

        :raises UnsupportedCapability: its driver cannot save memory; ``stop`` keeps the files.
        """
        return (yield from self._change("suspend"))

    def _stop(self) -> Flow[models.StateChange]:
        """End everything that runs in it and keep its files. The next call starts it, unless its lifecycle forbids."""
        change = yield from self._change("stop")
        self._life.epoch = change.epoch  # whoever asks for it knows that memory is gone
        return change

    def _resume(self) -> Flow[models.StateChange]:
        """Wake it, paused, suspended or stopped."""
        return (yield from self._change("resume"))

    def _change(self, what: _life_calls.StateCall) -> Flow[models.StateChange]:
        change = yield from send_patiently(_life_calls.change_state(self.id, what), self._patience)
        self._keep(self._info.model_copy(update={"state": change.state, "epoch": change.epoch}))
        return change

    # Snapshots

    def _snapshot(
        self,
        name: str | None = None,
        *,
        labels: Mapping[str, str] | None = None,
        memory: bool | None = None,
        retention: RetentionOption | None = None,
        idempotency_key: str | None = None,
    ) -> Flow[models.Snapshot]:
        """Save it as it is now. It goes on running; ``paused_s`` of the answer says how long it stood still.

        :param name: unique among this owner's snapshots.
        :param memory: None: what the driver can. False: the files alone.
        :param retention: a `cloche.models.Retention`, or a mapping with ``ttl_s`` or ``keep_last``.
        :param idempotency_key: calls with the same key make one snapshot; by default each has its own, so that one repeated
            after a lost connection makes one.
        :raises UnsupportedCapability: ``memory`` is true, and the driver cannot.
        :raises SnapshotFailed: nothing was saved; the sandbox is as it was.
        """
        body = built(SnapshotCreate, name=name, labels=labels, memory=memory, retention=retention)
        call = _life_calls.create_snapshot(self.id, body, idempotency_key or new_idempotency_key())
        return (yield from send_patiently(call, self._patience))

    def _snapshots(self) -> Flow[list[models.Snapshot]]:
        """The snapshots of this sandbox, newest first."""
        return (yield from all_pages(lambda query: _life_calls.sandbox_snapshots(self.id, query), (), self._patience))

    def _snapshot_tree(self) -> Flow[models.SnapshotTree]:
        """Which of its snapshots came from which."""
        return (yield from send_patiently(_life_calls.snapshot_tree(self.id), self._patience))

    def _restore(self, snapshot: SnapshotLike) -> Flow[models.Sandbox]:
        """Roll it back, in place: what is in it now is lost, its id, name and previews stay.

        This handle and all made by it are up to date afterwards. Those of other clients are `Stale` until they refresh.

        :param snapshot: a `cloche.models.Snapshot`, its id or its name; also one of another sandbox.
        :raises SnapshotBroken: its content is not what was saved. The sandbox goes on as it was.
        """
        body = built(Restore, snapshot=reference_of(snapshot))
        return self._live_on((yield from send_patiently(_life_calls.restore(self.id, body), self._patience)))

    def _forked(self, count: int, options: ForkOptions) -> Flow[models.ForkResult]:
        key = options.pop("idempotency_key", None) or new_idempotency_key()
        call = _life_calls.fork(self.id, built(Fork, count=count, **options), key)
        return (yield from send_patiently(call, self._patience))
