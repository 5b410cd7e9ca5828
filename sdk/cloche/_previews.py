"""Previews: URLs at which a port of a sandbox is reached from outside. `Preview` blocks, `AsyncPreview` awaits."""

from __future__ import annotations

from cloche import _preview_calls as _calls
from cloche import models
from cloche._answers import built
from cloche._flow import Flow, awaiting, blocking, send, send_patiently
from cloche._link import AsyncLink, Link
from cloche._patience import Patience
from cloche.models import PreviewCreate, PreviewToken, PreviewTokenCreate


def open_preview_flow(
    sandbox_id: str, port: int, public: bool, ttl_s: int | None, patience: Patience
) -> Flow[tuple[models.Preview, PreviewToken | None]]:
    """The preview of ``port`` as it is wanted, and a token when it needs one."""
    path = _calls.preview_path(sandbox_id, port)
    body = built(PreviewCreate, visibility="public" if public else "private", ttl_s=ttl_s)
    info = yield from send_patiently(_calls.put_preview(path, body), patience)
    if public:
        return info, None
    return info, (yield from send_patiently(_calls.create_preview_token(path, PreviewTokenCreate()), patience))


class PreviewFlows:
    """What can be done with a preview, as flows."""

    def __init__(self, info: models.Preview, token: PreviewToken | None, patience: Patience) -> None:
        self._info = info
        self._token = token
        self._patience = patience
        self._path = _calls.preview_path(info.sandbox_id, info.port)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._info.visibility} {self.url}>"

    @property
    def info(self) -> models.Preview:
        """What the server last said of this preview. See ``refresh``."""
        return self._info

    @property
    def port(self) -> int:
        """In the sandbox."""
        return self._info.port

    @property
    def url(self) -> str:
        """Where it is; a private one lets nobody in by this alone."""
        return self._info.url

    @property
    def public(self) -> bool:
        """Everybody who can reach the server gets in."""
        return self._info.visibility == "public"

    @property
    def token_url(self) -> str:
        """A URL that lets in whoever has it: of a private preview the one with the token this handle got, for a day.

        Of a preview from ``sandbox.previews()`` it is ``url`` until ``new_token`` was called.
        """
        return self.url if self.public or self._token is None else self._token.url

    def _keep(self, info: models.Preview) -> models.Preview:
        self._info = info
        return info

    def _refresh(self) -> Flow[models.Preview]:
        """Ask the server for `info` anew."""
        return self._keep((yield from send_patiently(_calls.preview(self._path), self._patience)))

    def _new_token(self, ttl_s: int | None = None) -> Flow[PreviewToken]:
        """Another token; `token_url` has it from now on.

        :param ttl_s: seconds it is good for; None: a day.
        """
        call = _calls.create_preview_token(self._path, built(PreviewTokenCreate, ttl_s=ttl_s))
        self._token = yield from send_patiently(call, self._patience)
        return self._token

    def _revoke(self) -> Flow[models.Preview]:
        """End every token so far, at once, with the connections they let in."""
        info = yield from send_patiently(_calls.revoke_preview_tokens(self._path), self._patience)
        self._token = None
        return self._keep(info)

    def _delete(self) -> Flow[models.Preview]:
        """End the preview. The program in the sandbox goes on."""
        return self._keep((yield from send(_calls.delete_preview(self._path))))


class Preview(PreviewFlows):
    """A port of a sandbox, reached from outside."""

    def __init__(self, link: Link, info: models.Preview, token: PreviewToken | None = None) -> None:
        super().__init__(info, token, link.patience)
        self._link = link

    refresh = blocking(PreviewFlows._refresh)
    new_token = blocking(PreviewFlows._new_token)
    revoke = blocking(PreviewFlows._revoke)
    delete = blocking(PreviewFlows._delete)


class AsyncPreview(PreviewFlows):
    """A port of a sandbox, reached from outside."""

    def __init__(self, link: AsyncLink, info: models.Preview, token: PreviewToken | None = None) -> None:
        super().__init__(info, token, link.patience)
        self._link = link

    refresh = awaiting(PreviewFlows._refresh)
    new_token = awaiting(PreviewFlows._new_token)
    revoke = awaiting(PreviewFlows._revoke)
    delete = awaiting(PreviewFlows._delete)
