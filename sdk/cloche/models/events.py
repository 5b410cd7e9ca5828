"""Events: the records of journals as clients see them.

Over SSE: ``id:`` is the cursor *after* the event (send it back as ``Last-Event-ID`` to go on), ``event:`` the ``type``,
``data:`` the event as JSON. Over WebSocket: one JSON text frame an event. Both carry the same object.

| type | of | data |
|---|---|---|
| started | run | execution_count, generation |
| stdout, stderr | run, context | text (context: late output of threads and processes, with run_id, null when unknown) |
| result, display, update_display | run | data, metadata, display_id, execution_count |
| clear_output | run | wait |
| input_request | run | prompt, password |
| error | run | name, value, traceback |
| finished | run | status, failure, kernel_restarted, duration_s; always the last |
| display | context | run_id, data, metadata, display_id: shown by a thread after its run had ended |
| context_state | context | state, generation, failure |
| queued, run_started, run_finished | context | run_id (and status) |
| update_display | context | run_id of the run that shows it, data, metadata, display_id |
| gap | every journal | records, bytes: what this reader missed, exactly |
"""

from __future__ import annotations

from pydantic import JsonValue

from cloche.models._base import Model


class Event(Model):
    """One event. ``cursor`` points behind it."""

    type: str
    cursor: str
    data: dict[str, JsonValue]
