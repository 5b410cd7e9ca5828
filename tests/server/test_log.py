"""Log lines: for programs and for people."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import pytest

from cloche_server.log import JsonFormatter, TextFormatter, set_up_logging


def record(**extra: object) -> logging.LogRecord:
    made = logging.getLogger("cloche.test").makeRecord(
        "cloche.test", logging.INFO, "file.py", 1, "a %s", ("word",), None, extra=extra
    )
    assert made.getMessage() == "a word"
    return made


def test_json_lines_have_the_fields_and_only_those_that_are_known() -> None:
    line = json.loads(JsonFormatter().format(record(request_id="req-1", sandbox_id=None, ms=1.5)))
    assert line.pop("time").endswith("+00:00")
    assert line == {"level": "info", "logger": "cloche.test", "message": "a word", "request_id": "req-1", "ms": 1.5}


def test_an_exception_becomes_a_traceback_field() -> None:
    made = record()
    try:
        raise ValueError("boom")
    except ValueError:
        made.exc_info = sys.exc_info()
    assert json.loads(JsonFormatter().format(made))["traceback"].endswith("ValueError: boom")
    assert TextFormatter().format(made).endswith("ValueError: boom")


def test_text_lines_cannot_steer_a_terminal() -> None:
    line = TextFormatter().format(record(why="\x1b[2J\nforged line"))
    assert "\x1b" not in line
    assert "\n" not in line
    assert "info    a word why=\\x1b[2J\\nforged line" in line


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def root_logger() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.usefixtures("root_logger")
@pytest.mark.parametrize(("style", "on_terminal"), [("auto", True), ("auto", False), ("json", True), ("text", False)])
def test_auto_means_text_on_a_terminal(style: str, on_terminal: bool) -> None:
    stream = Terminal() if on_terminal else io.StringIO()
    set_up_logging(style, stream)  # type: ignore[arg-type]
    logging.getLogger("cloche.test").info("hello")
    is_json = style == "json" or (style == "auto" and not on_terminal)
    assert stream.getvalue().startswith("{") is is_json
