"""The previews of all sandboxes: made, found, signed for, revoked; and who is let in.

It does not know HTTP. The connections that were let in are kept here, so that a revocation ends them at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Protocol
from urllib.parse import urlencode

from cloche.errors import LimitReached, NotFound
from cloche.models import Preview, PreviewCreate, PreviewToken, PreviewTokenCreate, Role
from cloche_server.auth import Principal
from cloche_server.clock import Clock, now_us, to_datetime
from cloche_server.preview._headers import TOKEN_PARAMETER
from cloche_server.preview._names import PreviewHost, preview_authority
from cloche_server.preview._tokens import Kind, Purpose, check_token, new_preview_secret, sign_token
from cloche_server.sandboxes import SandboxService
from cloche_server.settings import Settings
from cloche_server.state import PreviewRow, PreviewStore

MAX_PREVIEWS: Final = 64
"""Of one sandbox."""

MAX_CONNECTIONS: Final = 128
"""Of one preview: requests and WebSockets under way. A browser opens six for HTTP, and as many tabs may be open."""

PUBLIC_WARNING: Final = "anybody who can reach this server can use this port of the sandbox, without a key"

_NO_SECRET: Final = "0" * 64
"""Checked for previews that do not exist, so that the time of the answer does not tell them from those that do."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request came with."""

    token: str | None = None
    cookies: tuple[str, ...] = ()
    principal: Principal | None = None


@dataclass(frozen=True, slots=True)
class Admission:
    """Who was let in: by what, and until when (microseconds; None: no end). ``cookie`` is for a browser that had a link."""

    row: PreviewRow
    owner: str
    by: Kind | None
    """None: by key, or because the preview is public."""
    expires_us: int | None = None
    cookie: str | None = None

    @property
    def revocable(self) -> bool:
        return self.by is not None or self.row.visibility == "public"


class Visitor(Protocol):
    """A connection that was let in."""

    def revoke(self) -> None:
        """It is not any more: end it now."""


class PreviewService:
    """One instance a server. ``public_port`` is set once the server listens."""

    def __init__(
        self, store: PreviewStore, sandboxes: SandboxService, settings: Settings, clock: Clock = now_us
    ) -> None:
        self.domain = settings.preview_domain
        self.scheme = settings.preview_scheme
        self.public_port: int | None = settings.preview_port
        self._store = store
        self._sandboxes = sandboxes
        self._clock = clock
        self._visitors: dict[tuple[str, int], dict[Visitor, Admission]] = {}
        store.forget_deleted()

    def listening_on(self, port: int) -> None:
        """URLs name this port, unless the operator chose another one."""
        if self.public_port is None and self.scheme == "http":
            self.public_port = port

    # The API

    def put(self, principal: Principal, sandbox_id: str, port: int, wanted: PreviewCreate) -> Preview:
        """The preview of this port as ``wanted``, made if there is none."""
        self._sandboxes.get(principal, sandbox_id)
        row = self._find(sandbox_id, port)
        now = self._clock()
        expires_us = None if wanted.ttl_s is None else now + wanted.ttl_s * 1_000_000
        if row is None:
            self._check_limit(sandbox_id)
            row = PreviewRow(sandbox_id, port, wanted.visibility or "private", new_preview_secret(), now, expires_us)
            self._store.put(row)
            return self.to_model(row)
        changed = replace(row, visibility=wanted.visibility or row.visibility, expires_us=expires_us or row.expires_us)
        self._store.update(row, visibility=changed.visibility, expires_us=changed.expires_us)
        if row.visibility == "public" and changed.visibility == "private":
            self._end_visits(row)
        return self.to_model(changed)

    def list(self, principal: Principal, sandbox_id: str) -> list[Preview]:
        self._sandboxes.get(principal, sandbox_id)
        return [self.to_model(row) for row in self._store.list(sandbox_id) if self._is_valid(row)]

    def get(self, principal: Principal, sandbox_id: str, port: int) -> Preview:
        return self.to_model(self._row(principal, sandbox_id, port))

    def delete(self, principal: Principal, sandbox_id: str, port: int) -> Preview:
        """Its tokens and cookies are worth nothing from now on, and its connections end."""
        row = self._row(principal, sandbox_id, port)
        self._store.delete(row)
        self._end_visits(row, everybody=True)
        return self.to_model(row)

    def sign(self, principal: Principal, sandbox_id: str, port: int, wanted: PreviewTokenCreate) -> PreviewToken:
        """A token, not beyond the end of the preview itself."""
        row = self._row(principal, sandbox_id, port)
        expires_us = self._clock() + wanted.ttl_s * 1_000_000
        if row.expires_us is not None:
            expires_us = min(expires_us, row.expires_us)
        token = sign_token(row.secret, Purpose("link", sandbox_id, port), expires_us)
        url = f"{self.url_of(sandbox_id, port)}?{urlencode({TOKEN_PARAMETER: token})}"
        return PreviewToken(token=token, url=url, expires_at=to_datetime(expires_us))

    def revoke(self, principal: Principal, sandbox_id: str, port: int) -> Preview:
        """Every token and cookie so far."""
        row = self._row(principal, sandbox_id, port)
        self._store.update(row, secret=new_preview_secret())
        self._end_visits(row)
        return self.to_model(row)

    def to_model(self, row: PreviewRow) -> Preview:
        return Preview(
            sandbox_id=row.sandbox_id,
            port=row.port,
            url=self.url_of(row.sandbox_id, row.port),
            visibility=row.visibility,
            warning=PUBLIC_WARNING if row.visibility == "public" else None,
            created_at=to_datetime(row.created_us),
            expires_at=None if row.expires_us is None else to_datetime(row.expires_us),
        )

    def url_of(self, sandbox_id: str, port: int) -> str:
        return f"{self.scheme}://{preview_authority(port, sandbox_id, self.domain, self.public_port)}/"

    def _row(self, principal: Principal, sandbox_id: str, port: int) -> PreviewRow:
        self._sandboxes.get(principal, sandbox_id)
        row = self._find(sandbox_id, port)
        if row is None:
            raise NotFound(f"port {port} of this sandbox has no preview", details={"kind": "preview", "id": str(port)})
        return row

    def _find(self, sandbox_id: str, port: int) -> PreviewRow | None:
        row = self._store.find(sandbox_id, port)
        return row if row is not None and self._is_valid(row) else None

    def _is_valid(self, row: PreviewRow) -> bool:
        return row.expires_us is None or row.expires_us > self._clock()

    def _check_limit(self, sandbox_id: str) -> None:
        count = sum(map(self._is_valid, self._store.list(sandbox_id)))
        if count >= MAX_PREVIEWS:
            raise LimitReached(
                f"the sandbox has {count} previews", hint="delete one", details={"limit": MAX_PREVIEWS, "count": count}
            )

    # The gateway

    def admit(self, host: PreviewHost, given: Credentials) -> Admission | None:
        """None for a preview that does not exist and for one that is not for this visitor alike."""
        row = self._find(host.sandbox_id, host.port)
        secret = _NO_SECRET if row is None else row.secret
        link_us = self._check(secret, "link", host, (given.token or "",))
        cookie_us = self._check(secret, "cookie", host, given.cookies)
        sandbox = self._sandboxes.find(host.sandbox_id)
        if row is None or sandbox is None:
            return None
        if link_us is not None:
            cookie = sign_token(secret, Purpose("cookie", host.sandbox_id, host.port), link_us)
            return Admission(row, sandbox.owner, "link", link_us, cookie)
        if cookie_us is not None:
            return Admission(row, sandbox.owner, "cookie", cookie_us)
        by_key = given.principal
        if by_key is not None and by_key.role is not Role.VIEWER and by_key.may_see(sandbox.owner):
            return Admission(row, sandbox.owner, None, row.expires_us)
        return Admission(row, sandbox.owner, None, row.expires_us) if row.visibility == "public" else None

    def _check(self, secret: str, kind: Kind, host: PreviewHost, tokens: Iterable[str]) -> int | None:
        purpose = Purpose(kind, host.sandbox_id, host.port)
        ends = [check_token(secret, purpose, token, self._clock()) for token in tokens]
        return max((end for end in ends if end is not None), default=None)

    def seconds_left(self, admission: Admission) -> float | None:
        if admission.expires_us is None:
            return None
        return max(0.0, (admission.expires_us - self._clock()) / 1_000_000)

    @contextmanager
    def visit(self, visitor: Visitor, admission: Admission) -> Iterator[None]:
        """For the time of one connection. `LimitReached` over `MAX_CONNECTIONS`."""
        key = (admission.row.sandbox_id, admission.row.port)
        visitors = self._visitors.setdefault(key, {})
        if len(visitors) >= MAX_CONNECTIONS:
            raise LimitReached(
                f"{MAX_CONNECTIONS} connections to this preview are open", details={"limit": MAX_CONNECTIONS}
            )
        visitors[visitor] = admission
        try:
            yield
        finally:
            del visitors[visitor]
            if not visitors and self._visitors.get(key) is visitors:
                del self._visitors[key]

    def _end_visits(self, row: PreviewRow, *, everybody: bool = False) -> None:
        for visitor, admission in list(self._visitors.get((row.sandbox_id, row.port), {}).items()):
            if everybody or admission.revocable:
                visitor.revoke()
