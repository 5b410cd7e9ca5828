"""What the server asks a guest to compare it: its tree, its variables, the content of a file. The guest is untrusted, so
every answer is bounded and checked."""

from __future__ import annotations

from typing import Final, TypeVar
from urllib.parse import quote

import pydantic_core
from pydantic import BaseModel, ValidationError

from cloche.errors import ClocheError, GuestFault, NotFound
from cloche.models import Context, ContextState, Page
from cloche.models.guest import VariablesAsked, VariablesSummary
from cloche.path_text import from_text
from cloche_server.relay import GuestAnswer, GuestCall, call_guest
from cloche_server.uplink import WirePool

MAX_TREE_BYTES: Final = 64 * 1024 * 1024
"""Lines of the guest's 200,000 files with names of 200 bytes."""

MAX_WORD: Final = 4200
"""The longest target of a link is 4095 bytes."""

MAX_JSON_BYTES: Final = 4 * 1024 * 1024
TREE_BOUND_S: Final = 600.0
ASK_BOUND_S: Final = 30.0

M = TypeVar("M", bound=BaseModel)


class GuestView:
    """Of one running sandbox. ``user``: whose eyes; root sees everything, where there is one."""

    def __init__(self, pool: WirePool, user: str) -> None:
        self._pool = pool
        self._user = user

    async def tree(self, root: str) -> tuple[dict[str, str], bool] | None:
        """Relative path -> word, and whether there are more than the guest lists. None: there is no such directory."""
        query = f"path={quote(root, safe='')}&user={self._user}"
        call = GuestCall("GET", f"/v1/files/hashes?{query}", {200}, TREE_BOUND_S, accept="application/x-ndjson")
        try:
            raw = await self._ask(call, MAX_TREE_BYTES, TREE_BOUND_S)
        except NotFound:
            return None
        words, truncated = {}, False
        for line in raw.splitlines():
            found = _loaded(line)
            if found is None:
                truncated = True
            else:
                words[found[0]] = found[1]
        return words, truncated

    async def contexts(self) -> list[str]:
        """Ids of Python contexts with a kernel."""
        page = await self._model(GuestCall("GET", "/v1/contexts", {200}, ASK_BOUND_S), Page[Context])
        alive = (one for one in page.items if one.state is not ContextState.DEAD and one.language == "python")
        return [one.id for one in alive]

    async def variables(self, context_id: str) -> VariablesSummary:
        body = VariablesAsked(context_id=context_id).model_dump_json().encode()
        call = GuestCall("POST", "/v1/variables/summary", {200}, ASK_BOUND_S, body)
        return await self._model(call, VariablesSummary)

    async def content(self, path: str, limit: int) -> bytes | None:
        """None: it cannot be read, or is longer."""
        query = f"path={quote(path, safe='')}&user={self._user}"
        call = GuestCall("GET", f"/v1/files/content?{query}", {200}, ASK_BOUND_S, accept="application/octet-stream")
        try:
            return await self._ask(call, limit, ASK_BOUND_S)
        except ClocheError:
            return None

    async def _model(self, call: GuestCall, model: type[M]) -> M:
        raw = await self._ask(call, MAX_JSON_BYTES, ASK_BOUND_S)
        try:
            return model.model_validate_json(raw)
        except ValidationError as error:
            raise GuestFault(f"the guest answered {call.path} with something else than was asked") from error

    async def _ask(self, call: GuestCall, limit: int, silence_s: float) -> bytes:
        answer: GuestAnswer = await call_guest(self._pool, call, limit)
        try:
            return await answer.whole(limit, silence_s)
        finally:
            answer.close()


def _loaded(line: bytes) -> tuple[str, str] | None:
    try:
        found = pydantic_core.from_json(line)
        if found is None:
            return None
        path, word = found
        from_text(path)
        return path, word[:MAX_WORD]
    except (ValueError, TypeError) as error:
        raise GuestFault("the guest listed its files in another form than was asked") from error
