"""The Jupyter wire format: one message as the frames of one ZMQ message, signed. Pure.

Frames: identities, ``<IDS|MSG>``, signature, header, parent header, metadata, content, buffers. The signature is an
HMAC-SHA256 over the four JSON frames as they stand.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

DELIMITER: Final = b"<IDS|MSG>"
PROTOCOL: Final = "5.4"

Json = dict[str, Any]


class BadMessage(ValueError):
    """Not a message of our kernel: wrong shape, wrong signature or not JSON."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message. `parent_id` is the msg_id of the request it belongs to, or empty."""

    kind: str
    id: str
    parent_id: str
    content: Json
    metadata: Json


@dataclass(frozen=True, slots=True)
class Signer:
    """Makes and checks messages of one connection."""

    key: bytes
    session: str

    def pack(self, kind: str, message_id: str, content: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[bytes]:
        """A request of ours, without identities: a DEALER adds its own."""
        header = {"msg_id": message_id, "msg_type": kind, "session": self.session, "username": "", "version": PROTOCOL}
        parts = [_dump(header | {"date": _DATE}), b"{}", _dump(metadata), _dump(content)]
        return [DELIMITER, self._sign(parts), *parts]

    def unpack(self, frames: Sequence[bytes]) -> Message:
        """
        Raises:
            BadMessage: see there.
        """
        try:
            start = frames.index(DELIMITER) + 1
            signature, header, parent, metadata, content = frames[start : start + 5]
        except ValueError:
            raise BadMessage(f"{len(frames)} frames are no Jupyter message") from None
        if not hmac.compare_digest(signature, self._sign([header, parent, metadata, content])):
            raise BadMessage("wrong signature")
        return _message(_load(header), _load(parent), _load(metadata), _load(content))

    def _sign(self, parts: Sequence[bytes]) -> bytes:
        digest = hmac.new(self.key, digestmod=hashlib.sha256)
        for part in parts:
            digest.update(part)
        return digest.hexdigest().encode()


_DATE: Final = "1970-01-01T00:00:00Z"
"""The protocol wants a date in every header; nobody reads it."""


def _message(header: Json, parent: Json, metadata: Json, content: Json) -> Message:
    try:
        return Message(str(header["msg_type"]), str(header["msg_id"]), str(parent.get("msg_id", "")), content, metadata)
    except KeyError as error:
        raise BadMessage(f"header without {error}") from None


def _dump(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _load(data: bytes) -> Json:
    """JSON as strict as what we send on: NaN and infinities, which Python writes and JSON forbids, become strings."""
    try:
        value = json.loads(data, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"a frame is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise BadMessage(f"a frame is JSON, but {type(value).__name__} and not an object")
    return value
