"""Calls: every route of the API as one typed value.

Pure. A `Call` says what to send and how to read the answer; it does not know who sends it. Paths, queries and bodies
are spelled here and nowhere else; docs/protocol.md is their contract.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeVar

from cloche import models
from cloche._answers import model_parser
from cloche.errors import InvalidRequest
from cloche.models import browser
from cloche.models import terminals as term

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Query = tuple[tuple[str, str], ...]

DEFAULT_ANSWER_S: Final = 30.0
"""Above every bound the server names for a plain call (10 s for a connection to the guest, 10 s for complete)."""

CONTEXT_ANSWER_S: Final = 90.0
"""A new or restarted context answers within 60 s (docs/protocol.md); the rest is for the way."""

CREATE_ANSWER_S: Final = 180.0
"""Creating a sandbox tries two starts, each with its own bound, and may wait for other creates on a small machine."""

_SEGMENT: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")


@dataclass(frozen=True, slots=True)
class Call(Generic[T_co]):
    """One HTTP call. ``repeatable``: sending it twice has the effect of sending it once."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str
    parse: Callable[[bytes], T_co]
    query: Query = ()
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    repeatable: bool = False
    answer_within_s: float = DEFAULT_ANSWER_S


def segment(kind: str, value: str) -> str:
    """``value`` as one path segment. Anything but an id or a name would address another route.

    :raises InvalidRequest: it is neither.
    """
    if _SEGMENT.fullmatch(value) is None:
        raise InvalidRequest(f"{value!r} is no id or name of a {kind}", details={"field": kind})
    return value


def json_body(model: models.Model) -> bytes:
    """Only what the caller set: defaults are the server's to choose."""
    return model.model_dump_json(exclude_unset=True).encode()


def keyed(
    path: str, parse: Callable[[bytes], T], body: models.Model, idempotency_key: str, answer_within_s: float
) -> Call[T]:
    """Repeatable because of the key: the same key and body make a thing once."""
    headers = {"Idempotency-Key": idempotency_key}
    return Call(
        "POST", path, parse, body=json_body(body), headers=headers, repeatable=True, answer_within_s=answer_within_s
    )


_health = model_parser(models.Health)
_info = model_parser(models.Info)
_images = model_parser(models.ImageList)
_key = model_parser(models.Key)
_new_key = model_parser(models.NewKey)
_keys = model_parser(models.Page[models.Key])
_sandbox = model_parser(models.Sandbox)
_sandboxes = model_parser(models.Page[models.Sandbox])
_context = model_parser(models.Context)
_contexts = model_parser(models.Page[models.Context])
_run = model_parser(models.Run)
_runs = model_parser(models.RunList)
_complete = model_parser(models.CompleteReply)
_inspect = model_parser(models.InspectReply)
_history = model_parser(models.History)
_variables = model_parser(models.Variables)
_terminal = model_parser(term.Terminal)
_terminals = model_parser(models.Page[term.Terminal])
_share = model_parser(term.TerminalShare)
_shares = model_parser(models.Page[term.TerminalShareInfo])
_share_info = model_parser(term.TerminalShareInfo)
_login = model_parser(browser.BrowserLogin)


def health() -> Call[models.Health]:
    return Call("GET", "/v1/health", _health, repeatable=True)


def info() -> Call[models.Info]:
    return Call("GET", "/v1/info", _info, repeatable=True)


def images() -> Call[models.ImageList]:
    return Call("GET", "/v1/images", _images, repeatable=True)


def create_key(body: models.KeyCreate) -> Call[models.NewKey]:
    return Call("POST", "/v1/keys", _new_key, body=json_body(body))


def keys(page: str | None) -> Call[models.Page[models.Key]]:
    return Call("GET", "/v1/keys", _keys, query=(("page", page),) if page else (), repeatable=True)


def revoke_key(key_id: str) -> Call[models.Key]:
    return Call("DELETE", f"/v1/keys/{segment('key', key_id)}", _key, repeatable=True)


def create_sandbox(body: models.SandboxCreate, idempotency_key: str) -> Call[models.Sandbox]:
    return keyed("/v1/sandboxes", _sandbox, body, idempotency_key, CREATE_ANSWER_S)


def sandboxes(query: Query) -> Call[models.Page[models.Sandbox]]:
    return Call("GET", "/v1/sandboxes", _sandboxes, query=query, repeatable=True)


def sandbox(sandbox_id: str) -> Call[models.Sandbox]:
    return Call("GET", sandbox_path(sandbox_id), _sandbox, repeatable=True)


def sandbox_by_name(name: str) -> Call[models.Sandbox]:
    return Call("GET", f"/v1/sandboxes/by-name/{segment('sandbox', name)}", _sandbox, repeatable=True)


def update_sandbox(sandbox_id: str, body: models.SandboxUpdate) -> Call[models.Sandbox]:
    return Call("PATCH", sandbox_path(sandbox_id), _sandbox, body=json_body(body), repeatable=True)


def delete_sandbox(sandbox_id: str) -> Call[models.Sandbox]:
    """Not repeatable by itself: a second delete says gone. `_sandbox` knows how to read that."""
    return Call("DELETE", sandbox_path(sandbox_id), _sandbox, answer_within_s=CONTEXT_ANSWER_S)


def sandbox_path(sandbox_id: str) -> str:
    return f"/v1/sandboxes/{segment('sandbox', sandbox_id)}"


def context_path(sandbox_id: str, context_id: str) -> str:
    return f"{sandbox_path(sandbox_id)}/contexts/{segment('context', context_id)}"


def create_context(sandbox_id: str, body: models.ContextCreate) -> Call[models.Context]:
    path = f"{sandbox_path(sandbox_id)}/contexts"
    return Call("POST", path, _context, body=json_body(body), answer_within_s=CONTEXT_ANSWER_S)


def contexts(sandbox_id: str) -> Call[models.Page[models.Context]]:
    return Call("GET", f"{sandbox_path(sandbox_id)}/contexts", _contexts, repeatable=True)


def context(path: str) -> Call[models.Context]:
    return Call("GET", path, _context, repeatable=True)


def delete_context(path: str) -> Call[models.Context]:
    return Call("DELETE", path, _context)


def interrupt_context(path: str) -> Call[models.Context]:
    return Call("POST", f"{path}/interrupt", _context)


def restart_context(path: str) -> Call[models.Context]:
    return Call("POST", f"{path}/restart", _context, answer_within_s=CONTEXT_ANSWER_S)


def complete(path: str, body: models.CompleteRequest) -> Call[models.CompleteReply]:
    return Call("POST", f"{path}/complete", _complete, body=json_body(body), repeatable=True)


def inspect(path: str, body: models.InspectRequest) -> Call[models.InspectReply]:
    return Call("POST", f"{path}/inspect", _inspect, body=json_body(body), repeatable=True)


def history(path: str, limit: int) -> Call[models.History]:
    return Call("GET", f"{path}/history", _history, query=(("limit", str(limit)),), repeatable=True)


def variables(path: str) -> Call[models.Variables]:
    return Call("GET", f"{path}/variables", _variables, repeatable=True)


def runs(path: str) -> Call[models.RunList]:
    return Call("GET", f"{path}/runs", _runs, repeatable=True)


def create_run(path: str, body: models.RunCreate, wait_s: float) -> Call[models.Run]:
    """Repeatable when the body has an ``id``: the context knows a run it has seen."""
    return Call(
        "POST",
        f"{path}/runs",
        _run,
        query=(("wait_s", f"{wait_s:g}"),),
        body=json_body(body),
        repeatable=body.id is not None,
        answer_within_s=CONTEXT_ANSWER_S + wait_s,  # the default context may have to start first
    )


def run(path: str, wait_s: float) -> Call[models.Run]:
    query = (("wait_s", f"{wait_s:g}"),)
    return Call("GET", path, _run, query=query, repeatable=True, answer_within_s=DEFAULT_ANSWER_S + wait_s)


def interrupt_run(path: str) -> Call[models.Run]:
    """Repeatable: a finished run stays as it is."""
    return Call("POST", f"{path}/interrupt", _run, repeatable=True)


def reply(path: str, body: models.InputReply) -> Call[models.Run]:
    return Call("POST", f"{path}/input", _run, body=json_body(body))


def terminal_path(sandbox_id: str, terminal_id: str) -> str:
    return f"{sandbox_path(sandbox_id)}/terminals/{segment('terminal', terminal_id)}"


def create_terminal(sandbox_id: str, body: term.TerminalCreate) -> Call[term.Terminal]:
    return Call("POST", f"{sandbox_path(sandbox_id)}/terminals", _terminal, body=json_body(body))


def terminals(sandbox_id: str) -> Call[models.Page[term.Terminal]]:
    return Call("GET", f"{sandbox_path(sandbox_id)}/terminals", _terminals, repeatable=True)


def terminal(path: str) -> Call[term.Terminal]:
    return Call("GET", path, _terminal, repeatable=True)


def resize_terminal(path: str, body: term.TerminalSize) -> Call[term.Terminal]:
    return Call("POST", f"{path}/resize", _terminal, body=json_body(body), repeatable=True)


def delete_terminal(path: str) -> Call[term.Terminal]:
    return Call("DELETE", path, _terminal)


def terminal_recording(path: str) -> Call[bytes]:
    return Call("GET", f"{path}/recording", bytes, repeatable=True)


def share_terminal(path: str, body: term.TerminalShareCreate) -> Call[term.TerminalShare]:
    return Call("POST", f"{path}/share", _share, body=json_body(body))


def terminal_shares(path: str) -> Call[models.Page[term.TerminalShareInfo]]:
    return Call("GET", f"{path}/shares", _shares, repeatable=True)


def revoke_terminal_share(path: str, share_id: str) -> Call[term.TerminalShareInfo]:
    return Call("DELETE", f"{path}/shares/{segment('share', share_id)}", _share_info)


def create_login(body: browser.BrowserLoginCreate) -> Call[browser.BrowserLogin]:
    return Call("POST", "/v1/browser/logins", _login, body=json_body(body))
