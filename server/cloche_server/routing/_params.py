"""Query parameters and path parameters: their types, and how text becomes values. Pure."""

from __future__ import annotations

from typing import Annotated, Final
from urllib.parse import parse_qsl, unquote, urlencode

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from cloche.errors import InvalidRequest
from cloche.models import ContextId, KeyId, Name, ProcessId, RunId, SandboxId, SandboxState, WatchId
from cloche.models.browser import UiPath
from cloche.models.processes import StreamName
from cloche.models.runs import MAX_WAIT_S
from cloche.models.templates import TemplateRef
from cloche.models.terminals import ShareId, TerminalId

MAX_FIELDS: Final = 128
"""64 labels are allowed on a sandbox; twice that is more than anybody can ask for."""


class Query(BaseModel):
    """Base: unknown parameters are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def encode(self) -> str:
        """For the guest: the values that are set, with defaults spelt out."""
        return urlencode(self.model_dump(exclude_none=True, mode="json"), doseq=True)


class NoQuery(Query):
    """No parameters at all."""


PageText = Annotated[str, StringConstraints(min_length=1, max_length=256)]
CursorText = Annotated[str, StringConstraints(max_length=256)]
LabelFilter = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]{0,62}=[^\x00]*$", max_length=320)]


class ListKeys(Query):
    limit: int = Field(default=50, ge=1, le=200)
    page: PageText | None = Field(default=None, description="`next_page` of the page before")


class ListSandboxes(Query):
    limit: int = Field(default=50, ge=1, le=200)
    page: PageText | None = Field(default=None, description="`next_page` of the page before")
    state: SandboxState | None = Field(default=None, description="without it, the deleted ones are left out")
    name: Name | None = None
    label: list[LabelFilter] = Field(default=[], max_length=64, description="`key=value`; several: all must match")
    owner: Name | None = Field(default=None, description="admins only; without it an admin sees all owners")


class ListSandboxSnapshots(Query):
    limit: int = Field(default=50, ge=1, le=200)
    page: PageText | None = Field(default=None, description="`next_page` of the page before")
    name: Name | None = None
    label: list[LabelFilter] = Field(default=[], max_length=64, description="`key=value`; several: all must match")


class ListSnapshots(ListSandboxSnapshots):
    sandbox: SandboxId | None = Field(default=None, description="of which sandbox, also of a deleted one")
    owner: Name | None = Field(default=None, description="admins only; without it an admin sees all owners")


class NewName(Query):
    name: Name | None = Field(default=None, description="of what is made")


class ListVolumes(Query):
    limit: int = Field(default=50, ge=1, le=200)
    page: PageText | None = Field(default=None, description="`next_page` of the page before")
    label: list[LabelFilter] = Field(default=[], max_length=64, description="`key=value`; several: all must match")
    owner: Name | None = Field(default=None, description="admins only; without it an admin sees all owners")


class ListUsage(Query):
    limit: int = Field(default=50, ge=1, le=200)
    page: PageText | None = Field(default=None, description="`next_page` of the page before")
    state: SandboxState | None = Field(default=None, description="without it, the deleted ones are left out")
    owner: Name | None = Field(default=None, description="admins only; without it an admin sees all owners")


class Wait(Query):
    wait_s: float = Field(default=0, ge=0, le=MAX_WAIT_S, description="seconds to wait for the end of the run")


class WaitByDefault(Query):
    wait_s: float = Field(default=30, ge=0, le=MAX_WAIT_S, description="seconds to wait for the end of the run")


class FromCursor(Query):
    cursor: CursorText | None = Field(default=None, description="go on behind this event; absent: from the oldest kept")


class HistoryLimit(Query):
    limit: int = Field(default=100, ge=1, le=1000)


class Stdin(Query):
    close: bool = Field(default=False, description="the end of the input follows this body")
    offset: int | None = Field(
        default=None, ge=0, description="where in all the input this body begins; what was taken is not taken again"
    )
    wait_s: float = Field(default=10, ge=0, le=MAX_WAIT_S, description="seconds to wait for the program to read it")


class ProcessEvents(FromCursor):
    stream: StreamName | None = Field(default=None, description="leave out the output of the other one")


class OutputPage(ProcessEvents):
    limit_bytes: int = Field(default=262_144, ge=1, le=4_194_304, description="of output; one record always fits")
    wait_s: float = Field(default=0, ge=0, le=MAX_WAIT_S, description="seconds to wait for something to come")


class UseLogin(Query):
    token: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    next: UiPath = "/ui/terminal"


class TerminalPage(Query):
    """Read by the page itself, not by the server."""

    sandbox: SandboxId | None = None
    terminal: TerminalId | None = None


AssetName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,127}$")]

PortText = Annotated[
    str,
    StringConstraints(
        pattern=r"^([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$"
    ),
]
"""1 to 65535, spelled in one way only."""

PATH_TYPES: Final[dict[str, TypeAdapter[str]]] = {
    "sandbox_id": TypeAdapter(SandboxId),
    "context_id": TypeAdapter(ContextId),
    "run_id": TypeAdapter(RunId),
    "process_id": TypeAdapter(ProcessId),
    "service_name": TypeAdapter(Name),
    "key_id": TypeAdapter(KeyId),
    "terminal_id": TypeAdapter(TerminalId),
    "share_id": TypeAdapter(ShareId),
    "watch_id": TypeAdapter(WatchId),
    "snapshot": TypeAdapter(Name),
    "volume": TypeAdapter(Name),
    "template_ref": TypeAdapter(TemplateRef),
    "pool_name": TypeAdapter(Name),
    "asset": TypeAdapter(AssetName),
    "port": TypeAdapter(PortText),
    "name": TypeAdapter(Name),
}


def path_value(name: str, raw: str) -> str | None:
    """The parameter's value; None when it is none that could exist."""
    try:
        return PATH_TYPES[name].validate_python(unquote(raw, errors="strict"))
    except (ValidationError, UnicodeDecodeError):
        return None


def parse_query(text: str, model: type[Query]) -> Query:
    """`InvalidRequest` lists every parameter that is unknown, doubled or has a bad value."""
    try:
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MAX_FIELDS)
    except ValueError as error:
        raise invalid([("query", "not a query string in UTF-8 with a bearable number of parameters")]) from error
    values: dict[str, str | list[str]] = {}
    for name, value in pairs:
        if name in model.model_fields and _repeatable(model, name):
            values.setdefault(name, []).append(value)  # type: ignore[union-attr]
        elif name in values:
            raise invalid([(name, "given more than once")])
        else:
            values[name] = value
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise invalid(problems_of(error)) from error


def _repeatable(model: type[Query], name: str) -> bool:
    return isinstance(model.model_fields[name].default, list)


def problems_of(error: ValidationError) -> list[tuple[str, str]]:
    """``(field, problem)``, without the values: they may be secrets."""
    found = error.errors(include_url=False, include_context=False, include_input=False)
    return [(".".join(str(part) for part in e["loc"]) or "body", e["msg"]) for e in found]


MAX_PROBLEMS: Final = 20


def invalid(problems: list[tuple[str, str]]) -> InvalidRequest:
    """The error that names all of ``problems`` (20 at most)."""
    listed = problems[:MAX_PROBLEMS]
    message = "; ".join(f"{field[:200]}: {problem}" for field, problem in listed[:3])
    more = f" (and {len(problems) - 3} more)" if len(problems) > 3 else ""
    return InvalidRequest(
        f"the request is not valid: {message}{more}",
        details={"errors": [{"field": field[:200], "problem": problem} for field, problem in listed]},
    )
