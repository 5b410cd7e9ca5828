"""Request bodies: bytes to models. Pure."""

from __future__ import annotations

import math
from typing import Any, Final

import pydantic_core
from pydantic import ValidationError

from cloche.models import Model
from cloche_server.routing import invalid, problems_of


def parse_body(raw: bytes, model: type[Model]) -> Model:
    """`InvalidRequest` for anything but JSON (strict: UTF-8, no NaN, bounded depth) that fits ``model`` exactly.

    Types are strict, too: a number in quotes is not a number. An empty body counts as ``{}``.
    """
    raw = raw or b"{}"
    try:
        _check_finite(pydantic_core.from_json(raw, allow_inf_nan=False))
    except ValueError as error:
        raise invalid([("body", f"not JSON: {error}")]) from error
    try:
        return model.model_validate_json(raw, strict=True)
    except ValidationError as error:
        raise invalid(problems_of(error)) from error


def refuse_body(raw: bytes) -> None:
    """For routes without one; ``{}`` is let through, since many clients send it."""
    if raw.strip() not in {b"", b"{}"}:
        raise invalid([("body", "this call takes no body")])


_LEAVES: Final = (str, int, type(None))


def _check_finite(value: Any) -> None:
    """1e999 is good JSON, but becomes infinite, which no JSON can say again."""
    stack = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
        elif not isinstance(item, _LEAVES) and not math.isfinite(item):
            raise ValueError("a number is out of range")
