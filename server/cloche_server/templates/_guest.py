"""Calls of our own into a guest, with models on both sides. `cloche_server.relay` passes on those of clients."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from cloche.errors import GuestFault
from cloche_server.relay import GuestCall, call_guest
from cloche_server.uplink import WirePool

Answer = TypeVar("Answer", bound=BaseModel)

MAX_ANSWER_BYTES: Final = 32 * 1024 * 1024
"""A run's outputs, or a page of output, with room to spare; the guest caps both lower."""


class Guest:
    """Of one sandbox. Every method raises what `call_guest` does."""

    def __init__(self, pool: WirePool) -> None:
        self._pool = pool

    async def ask(
        self, method: str, path: str, answer: type[Answer], body: BaseModel | None = None, bound_s: float = 30
    ) -> Answer:
        """`GuestFault` for an answer of another form."""
        raw = await self.call(method, path, b"" if body is None else _sent(body), bound_s)
        try:
            return answer.model_validate_json(raw)
        except ValidationError as error:
            raise GuestFault(f"the guest's answer to {method} {path.partition('?')[0]} has another form") from error

    async def call(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        bound_s: float = 30,
        statuses: Collection[int] = (200, 201, 202, 204),
    ) -> bytes:
        """The body of a good answer."""
        call = GuestCall(method, path, statuses, bound_s, body)
        answer = await call_guest(self._pool, call, MAX_ANSWER_BYTES)
        try:
            return await answer.whole(MAX_ANSWER_BYTES)
        finally:
            answer.close()


def _sent(body: BaseModel) -> bytes:
    return json.dumps(body.model_dump(mode="json")).encode()
