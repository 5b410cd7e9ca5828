"""Logs: one JSON object a line on stderr, or one readable line on a terminal.

Fields are given as ``extra``; nothing here ever sees a body, a query or a header.
"""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

_STANDARD: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """What was given as ``extra``, without what is unknown."""
    return {k: v for k, v in record.__dict__.items() if k not in _STANDARD and v is not None}


class JsonFormatter(logging.Formatter):
    """For programs."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class TextFormatter(logging.Formatter):
    """For people. Control characters are escaped: some fields may come from guests."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        fields = " ".join(f"{k}={v}" for k, v in fields_of(record).items())
        line = f"{when} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        clean = "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)
        return clean + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


def set_up_logging(style: Literal["auto", "json", "text"], stream: TextIO = sys.stderr) -> None:
    """Of the whole process. Called by the command line, never on import."""
    as_text = style == "text" or (style == "auto" and stream.isatty())
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    for noisy in ("alembic", "asyncio", "tornado.general"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
