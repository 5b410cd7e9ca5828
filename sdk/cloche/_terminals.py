"""The terminals of one sandbox: make, find, list, attach. See docs/terminals.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict, Unpack

from cloche import _calls, models
from cloche._answers import built
from cloche._attachment import AsyncAttachment, Attachment, Where
from cloche._exec import Command, command_fields
from cloche._flow import Flow, awaiting, blocking, send, send_patiently
from cloche._link import AsyncLink, Link
from cloche._patience import Patience
from cloche.models.terminals import TerminalCreate, TerminalShare, TerminalShareCreate, TerminalShareInfo, TerminalSize


class TerminalOptions(TypedDict, total=False):
    """What a new terminal is to be; see `cloche.models.terminals.TerminalCreate`."""

    name: str | None
    cwd: str | None
    env: Mapping[str, str] | None
    cols: int | None
    rows: int | None
    record: bool | None


class TerminalFlows:
    """What can be done with a terminal, as flows."""

    def __init__(self, sandbox_id: str, info: models.terminals.Terminal, patience: Patience) -> None:
        self._path = _calls.terminal_path(sandbox_id, info.id)
        self._info = info
        self._patience = patience

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    @property
    def id(self) -> str:
        """``term-`` and twelve letters and digits."""
        return self._info.id

    @property
    def info(self) -> models.terminals.Terminal:
        """What the server last said of this terminal. See ``refresh``."""
        return self._info

    def _refresh(self) -> Flow[models.terminals.Terminal]:
        """Ask the server for `info` anew.

        :raises Gone: it was deleted.
        """
        self._info = yield from send_patiently(_calls.terminal(self._path), self._patience)
        return self._info

    def _resize(self, cols: int, rows: int) -> Flow[models.terminals.Terminal]:
        """Give it this size, whoever controls it."""
        body = built(TerminalSize, cols=cols, rows=rows)
        self._info = yield from send_patiently(_calls.resize_terminal(self._path, body), self._patience)
        return self._info

    def _delete(self) -> Flow[models.terminals.Terminal]:
        """Hang up, then kill everything the program started."""
        return (yield from send(_calls.delete_terminal(self._path)))

    def _recording(self) -> Flow[bytes]:
        """What it showed so far, as an asciicast (version 2).

        :raises NotFound: it is not recorded.
        """
        return (yield from send_patiently(_calls.terminal_recording(self._path), self._patience))

    def _share(self, *, ttl_s: int | None = None) -> Flow[TerminalShare]:
        """A link with which anybody can watch, and do nothing else.

        :param ttl_s: how long; an hour by default.
        """
        return (yield from send(_calls.share_terminal(self._path, built(TerminalShareCreate, ttl_s=ttl_s))))

    def _shares(self) -> Flow[list[TerminalShareInfo]]:
        """The links for watching that are good, oldest first, without their tokens."""
        return list((yield from send_patiently(_calls.terminal_shares(self._path), self._patience)).items)

    def _revoke_share(self, share_id: str) -> Flow[TerminalShareInfo]:
        """End one link, by its ``id``: nobody comes in by it any more, and who watches by it is cut off.

        :raises NotFound: this terminal has no such link (any more).
        """
        return (yield from send(_calls.revoke_terminal_share(self._path, share_id)))


class Terminal(TerminalFlows):
    """A program on a PTY. Made by `Sandbox.terminals`."""

    def __init__(self, link: Link, sandbox_id: str, info: models.terminals.Terminal) -> None:
        super().__init__(sandbox_id, info, link.patience)
        self._link = link

    def attach(self, *, cols: int | None = None, rows: int | None = None) -> Attachment:
        """Connect to its output and input. Use it in a ``with`` block; leaving it leaves the program alone.

        :param cols: with ``rows``: the size it gets when nobody else controls it.
        """
        return Attachment(_where(self._link, self._path, cols, rows), self._patience)

    refresh = blocking(TerminalFlows._refresh)
    resize = blocking(TerminalFlows._resize)
    delete = blocking(TerminalFlows._delete)
    recording = blocking(TerminalFlows._recording)
    share = blocking(TerminalFlows._share)
    shares = blocking(TerminalFlows._shares)
    revoke_share = blocking(TerminalFlows._revoke_share)


class AsyncTerminal(TerminalFlows):
    """A program on a PTY. Made by `AsyncSandbox.terminals`."""

    def __init__(self, link: AsyncLink, sandbox_id: str, info: models.terminals.Terminal) -> None:
        super().__init__(sandbox_id, info, link.patience)
        self._link = link

    def attach(self, *, cols: int | None = None, rows: int | None = None) -> AsyncAttachment:
        """Connect by ``async with``; see `Terminal.attach`."""
        return AsyncAttachment(_where(self._link, self._path, cols, rows), self._patience)

    refresh = awaiting(TerminalFlows._refresh)
    resize = awaiting(TerminalFlows._resize)
    delete = awaiting(TerminalFlows._delete)
    recording = awaiting(TerminalFlows._recording)
    share = awaiting(TerminalFlows._share)
    shares = awaiting(TerminalFlows._shares)
    revoke_share = awaiting(TerminalFlows._revoke_share)


class Terminals:
    """The terminals of one sandbox."""

    def __init__(self, link: Link, sandbox_id: str) -> None:
        self._link = link
        self._sandbox_id = sandbox_id

    def create(self, command: Command | None = None, **options: Unpack[TerminalOptions]) -> Terminal:
        """Start a program, or a line of shell, on a terminal of its own; without ``command``, the user's shell."""
        body = built(TerminalCreate, **command_fields(command), **options)
        return self._handle(self._link.drive(send(_calls.create_terminal(self._sandbox_id, body))))

    def get(self, terminal_id: str) -> Terminal:
        """The terminal with this id.

        :raises NotFound: there is none.
        :raises Gone: it is no longer kept.
        """
        call = _calls.terminal(_calls.terminal_path(self._sandbox_id, terminal_id))
        return self._handle(self._link.drive(send_patiently(call, self._link.patience)))

    def list(self) -> list[Terminal]:
        """All that run, and the latest that have exited; newest first."""
        call = _calls.terminals(self._sandbox_id)
        page = self._link.drive(send_patiently(call, self._link.patience))
        return [self._handle(info) for info in page.items]

    def _handle(self, info: models.terminals.Terminal) -> Terminal:
        return Terminal(self._link, self._sandbox_id, info)


class AsyncTerminals:
    """The terminals of one sandbox."""

    def __init__(self, link: AsyncLink, sandbox_id: str) -> None:
        self._link = link
        self._sandbox_id = sandbox_id

    async def create(self, command: Command | None = None, **options: Unpack[TerminalOptions]) -> AsyncTerminal:
        """Start a program, or a line of shell, on a terminal of its own; without ``command``, the user's shell."""
        body = built(TerminalCreate, **command_fields(command), **options)
        return self._handle(await self._link.drive(send(_calls.create_terminal(self._sandbox_id, body))))

    async def get(self, terminal_id: str) -> AsyncTerminal:
        """The terminal with this id. Errors as in `Terminals.get`."""
        call = _calls.terminal(_calls.terminal_path(self._sandbox_id, terminal_id))
        return self._handle(await self._link.drive(send_patiently(call, self._link.patience)))

    async def list(self) -> list[AsyncTerminal]:
        """All that run, and the latest that have exited; newest first."""
        call = _calls.terminals(self._sandbox_id)
        page = await self._link.drive(send_patiently(call, self._link.patience))
        return [self._handle(info) for info in page.items]

    def _handle(self, info: models.terminals.Terminal) -> AsyncTerminal:
        return AsyncTerminal(self._link, self._sandbox_id, info)


def _where(link: Link | AsyncLink, path: str, cols: int | None, rows: int | None) -> Where:
    url = "ws" + link.url.removeprefix("http") + f"{path}/attach"
    return Where(url, link.auth_headers, cols, rows)
