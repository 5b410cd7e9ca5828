"""Clients: one server and one key. What concerns no single sandbox is done here; sandboxes share its connections."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import httpx

from cloche import _calls, _volume_calls, models
from cloche._answers import built
from cloche._config import load_config
from cloche._flow import Flow, awaiting, blocking, send, send_patiently
from cloche._link import AsyncLink, Link
from cloche._pages import all_pages
from cloche._patience import Patience
from cloche._snapshots import AsyncSnapshots, HasId, Snapshots, compare_flow
from cloche._templates import AsyncIntents, AsyncPools, AsyncTemplates, Intents, Pools, Templates
from cloche._users import Users
from cloche._volumes import AsyncVolumes, Volumes
from cloche.models import Role, SandboxState


class KeyFlows:
    """API keys, as flows. All need the role admin."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    def _create(self, owner: str, *, role: Role | str | None = None, label: str | None = None) -> Flow[models.NewKey]:
        """Make a key. Its ``secret`` is shown this one time.

        :param role: ``admin``, ``member`` (the default) or ``viewer``.
        :param label: what it is for, free text.
        """
        return (yield from send(_calls.create_key(built(models.KeyCreate, owner=owner, role=role, label=label))))

    def _list(self) -> Flow[list[models.Key]]:
        """All keys, newest first, without their secrets."""
        found: list[models.Key] = []
        page: str | None = None
        while True:
            answer = yield from send_patiently(_calls.keys(page), self._patience)
            found += answer.items
            page = answer.next_page
            if page is None:
                return found

    def _revoke(self, key_id: str) -> Flow[models.Key]:
        """End a key at once."""
        return (yield from send(_calls.revoke_key(key_id)))


class Keys(KeyFlows):
    """API keys of one server."""

    def __init__(self, link: Link) -> None:
        super().__init__(link.patience)
        self._link = link

    create = blocking(KeyFlows._create)
    list = blocking(KeyFlows._list)
    revoke = blocking(KeyFlows._revoke)


class AsyncKeys(KeyFlows):
    """API keys of one server."""

    def __init__(self, link: AsyncLink) -> None:
        super().__init__(link.patience)
        self._link = link

    create = awaiting(KeyFlows._create)
    list = awaiting(KeyFlows._list)
    revoke = awaiting(KeyFlows._revoke)


class ClientFlows:
    """What can be asked of a server, as flows."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    def _health(self) -> Flow[models.Health]:
        """Whether the server answers."""
        return (yield from send(_calls.health()))

    def _info(self) -> Flow[models.Info]:
        """Version, drivers with their self-tests, and who this key is."""
        return (yield from send_patiently(_calls.info(), self._patience))

    def _images(self) -> Flow[list[models.Image]]:
        """The images sandboxes can be made from, newest first."""
        return (yield from send_patiently(_calls.images(), self._patience)).images

    def _list_sandboxes(
        self,
        *,
        state: SandboxState | str | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        owner: str | None = None,
        limit: int | None = None,
    ) -> Flow[list[models.Sandbox]]:
        """Sandboxes of this key's owner, newest first.

        :param labels: only those that have all of these.
        :param owner: of another owner; needs the role admin.
        :param limit: at most so many; None: all.
        """
        return (yield from all_pages(_calls.sandboxes, _list_query(state, name, labels, owner), self._patience, limit))

    def _usage(
        self, *, state: SandboxState | str | None = None, owner: str | None = None, limit: int | None = None
    ) -> Flow[list[models.Usage]]:
        """What the sandboxes of this key's owner have cost, in the order of `list_sandboxes`.

        :param state: ``deleted`` for those that are gone; None: all the others.
        :param owner: of another owner; needs the role admin.
        :param limit: at most so many; None: all.
        """
        filters = _list_query(state, None, None, owner)
        return (yield from all_pages(_volume_calls.usages, filters, self._patience, limit))

    def _compare(
        self, before: HasId | str, after: HasId | str, *, root: str | None = None, diffs: bool | None = None
    ) -> Flow[models.Comparison]:
        """What differs between two sandboxes or snapshots: files, and variables of Python contexts.

        :param before: a handle, a `cloche.models.Snapshot`, or the id of either; ``after`` likewise.
        :param root: the directory whose files are compared; None: /workspace.
        :param diffs: with a unified diff of each text file that changed.
        """
        return (yield from compare_flow(before, after, root, diffs, self._patience))


class Client(ClientFlows):
    """A server and a key.

    :param url: default `CLOCHE_URL`, else ``http://127.0.0.1:8720``.
    :param api_key: default `CLOCHE_API_KEY`, else for a server on this machine its first key, when readable.
    :param reconnect_s: how long to go on trying when a server that was reached before is lost.
    :param transport: a replacement for the network, for tests.
    :raises Unauthenticated: no key is given and none is found.

    May be shared by threads.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        reconnect_s: float = 30.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        patience = Patience(reconnect_s)
        super().__init__(patience)
        self._link = Link(load_config(url, api_key, os.environ, Path.read_text), patience, transport)
        self._users = Users()
        self.url = self._link.url
        self.keys = Keys(self._link)
        self.volumes = Volumes(self._link)
        self.snapshots = Snapshots(self._link)
        self.templates = Templates(self._link)
        self.pools = Pools(self._link)
        self.intents = Intents(self._link)

    def __repr__(self) -> str:
        return f"<Client {self.url}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Sandboxes stay."""
        self._link.close()

    health = blocking(ClientFlows._health)
    info = blocking(ClientFlows._info)
    images = blocking(ClientFlows._images)
    list_sandboxes = blocking(ClientFlows._list_sandboxes)
    usage = blocking(ClientFlows._usage)
    compare = blocking(ClientFlows._compare)


class AsyncClient(ClientFlows):
    """A server and a key; parameters as in `Client`. May be shared by the tasks of one event loop."""

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        *,
        reconnect_s: float = 30.0,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        patience = Patience(reconnect_s)
        super().__init__(patience)
        self._link = AsyncLink(load_config(url, api_key, os.environ, Path.read_text), patience, transport)
        self._users = Users()
        self.url = self._link.url
        self.keys = AsyncKeys(self._link)
        self.volumes = AsyncVolumes(self._link)
        self.snapshots = AsyncSnapshots(self._link)
        self.templates = AsyncTemplates(self._link)
        self.pools = AsyncPools(self._link)
        self.intents = AsyncIntents(self._link)

    def __repr__(self) -> str:
        return f"<AsyncClient {self.url}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Sandboxes stay."""
        await self._link.close()

    health = awaiting(ClientFlows._health)
    info = awaiting(ClientFlows._info)
    images = awaiting(ClientFlows._images)
    list_sandboxes = awaiting(ClientFlows._list_sandboxes)
    usage = awaiting(ClientFlows._usage)
    compare = awaiting(ClientFlows._compare)


def _list_query(
    state: SandboxState | str | None, name: str | None, labels: Mapping[str, str] | None, owner: str | None
) -> _calls.Query:
    single = (("state", state), ("name", name), ("owner", owner))
    chosen = tuple((field, str(value)) for field, value in single if value is not None)
    return (*chosen, *(("label", f"{key}={value}") for key, value in (labels or {}).items()))
