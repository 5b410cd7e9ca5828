"""Records of journals as events."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import JsonValue

from cloche.journal import Gap, Record
from cloche.models import Event
from cloche.models.processes import data_fields

TEXT_KINDS = frozenset(("stdout", "stderr"))

TextRecords = Literal["json", "utf8", "bytes"]
"""What stdout and stderr are in a journal: JSON as everything else; text, which becomes ``text``; or what programs wrote,
which becomes ``text`` or ``base64``."""


def event_data(record: Record | Gap, *, text_records: TextRecords) -> dict[str, JsonValue]:
    """The ``data`` of the event."""
    if isinstance(record, Gap):
        return {"records": record.records, "bytes": record.bytes}
    if text_records == "utf8" and record.kind in TEXT_KINDS:
        return {"text": record.data.decode("utf-8", "replace")}
    if text_records == "bytes" and record.kind in TEXT_KINDS:
        return {**data_fields(record.data)}
    data: dict[str, JsonValue] = json.loads(record.data)
    return data


def event_json(record: Record | Gap, *, text_records: TextRecords) -> bytes:
    """`event_data` as JSON on one line. JSON records are stored in that form and are passed on as they are."""
    if isinstance(record, Record) and (text_records == "json" or record.kind not in TEXT_KINDS):
        return record.data
    return json.dumps(event_data(record, text_records=text_records), ensure_ascii=False).encode("utf-8", "replace")


def event_type(record: Record | Gap) -> str:
    """The ``type`` of the event."""
    return "gap" if isinstance(record, Gap) else record.kind


def to_event(record: Record | Gap, *, text_records: TextRecords) -> Event:
    """The event clients see."""
    data = event_data(record, text_records=text_records)
    return Event.model_construct(type=event_type(record), cursor=str(record.cursor), data=data)
