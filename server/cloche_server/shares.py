"""Links with which anybody can watch one terminal: made, found, revoked; and who is let in by one.

A link is a signed token (`cloche_server.links`) that names a row, so it can be revoked alone. It does not know HTTP. The
connections that were let in are kept here, so that they end with the link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Protocol

from cloche.errors import LimitReached, NotFound
from cloche.models.terminals import TerminalShare, TerminalShareCreate, TerminalShareInfo
from cloche_server.auth import Principal
from cloche_server.clock import Clock, now_us, to_datetime
from cloche_server.ids import new_share_id
from cloche_server.links import LinkSigner
from cloche_server.sandboxes import SandboxService
from cloche_server.state import ShareRow, ShareStore

PURPOSE: Final = "share"

MAX_SHARES: Final = 256
"""Of one sandbox, to bound the table. A link to each of its 64 terminals for four people."""


class Watcher(Protocol):
    """A connection that was let in by a link."""

    def end(self, reason: str) -> None:
        """The link is no longer good: end now, and say so."""


class ShareService:
    """One instance a server."""

    def __init__(self, store: ShareStore, links: LinkSigner, sandboxes: SandboxService, clock: Clock = now_us) -> None:
        self._store = store
        self._links = links
        self._sandboxes = sandboxes
        self._clock = clock
        self._watchers: dict[str, set[Watcher]] = {}

    # The API

    def create(
        self, principal: Principal, sandbox_id: str, terminal_id: str, wanted: TerminalShareCreate
    ) -> TerminalShare:
        """The terminal need not exist: a link to nothing shows nothing."""
        owner = self._sandboxes.get(principal, sandbox_id).owner
        self._check_limit(sandbox_id)
        now = self._clock()
        expires_s = now // 1_000_000 + wanted.ttl_s  # tokens know whole seconds
        row = ShareRow(new_share_id(), sandbox_id, terminal_id, now, expires_s * 1_000_000)
        self._store.add(row)
        fields = {"share": row.id, "sandbox": sandbox_id, "terminal": terminal_id, "owner": owner}
        token = self._links.sign(PURPOSE, fields, expires_s)
        path = f"/ui/terminal?sandbox={sandbox_id}&terminal={terminal_id}#share={token}"
        return TerminalShare(id=row.id, token=token, path=path, expires_at=to_datetime(row.expires_us))

    def list(self, principal: Principal, sandbox_id: str, terminal_id: str) -> list[TerminalShareInfo]:
        """Those that are good, oldest first."""
        self._sandboxes.get(principal, sandbox_id)
        return [self._to_model(row) for row in self._store.list(sandbox_id, terminal_id, self._clock())]

    def revoke(self, principal: Principal, sandbox_id: str, terminal_id: str, share_id: str) -> TerminalShareInfo:
        """It is worth nothing from now on, and the connections it opened end. What it was.

        Raises:
            NotFound: this terminal has no such link (any more).
        """
        self._sandboxes.get(principal, sandbox_id)
        row = self._store.find(share_id)
        if row is None or (row.sandbox_id, row.terminal_id) != (sandbox_id, terminal_id):
            raise NotFound("this terminal has no such link", details={"kind": "share", "id": share_id})
        was = self._to_model(row)
        self._store.delete(share_id)
        self._end(share_id, "the link was revoked")
        return was

    def _check_limit(self, sandbox_id: str) -> None:
        self._store.forget_useless(self._clock())
        if self._store.count(sandbox_id) >= MAX_SHARES:
            raise LimitReached(
                f"this sandbox has {MAX_SHARES} links to its terminals, and no more are possible",
                hint="revoke some, or make links that end sooner",
                details={"limit": "shares", "max": MAX_SHARES},
            )

    def _to_model(self, row: ShareRow) -> TerminalShareInfo:
        return TerminalShareInfo(
            id=row.id,
            terminal_id=row.terminal_id,
            created_at=to_datetime(row.created_us),
            expires_at=to_datetime(row.expires_us),
            watchers=len(self._watchers.get(row.id, ())),
        )

    # Who comes by a link

    def principal(self, token: str, path: Mapping[str, str]) -> Principal | None:
        """A viewer of the one terminal in ``path``; None when the link does not lead there, is over or was revoked."""
        now = self._clock()
        fields = self._links.read(PURPOSE, token, now / 1_000_000)
        if fields is None or "share" not in fields:  # tokens of the time before links were listed
            return None
        if (fields["sandbox"], fields["terminal"]) != (path.get("sandbox_id"), path.get("terminal_id")):
            return None
        if self._store.find(fields["share"]) is None:
            return None
        return Principal.by_share(fields["share"], fields["owner"])

    @contextmanager
    def watching(self, share_id: str, watcher: Watcher) -> Iterator[None]:
        """For as long as the connection lives; it is told when the link ends, at once if it has ended already."""
        row = self._store.find(share_id)
        left_s = 0.0 if row is None else max(0, row.expires_us - self._clock()) / 1_000_000
        loop, reason = asyncio.get_running_loop(), "the link was revoked" if row is None else "the link is over"
        timer = loop.call_later(left_s, watcher.end, reason)
        watchers = self._watchers.setdefault(share_id, set())
        watchers.add(watcher)
        try:
            yield
        finally:
            timer.cancel()
            watchers.discard(watcher)
            if not watchers:
                self._watchers.pop(share_id, None)

    def _end(self, share_id: str, reason: str) -> None:
        for watcher in tuple(self._watchers.get(share_id, ())):
            watcher.end(reason)
