"""Digests of the user's variables: two kernels can be compared without moving their values.

Equal values of builtin types, of numpy arrays and of pandas' frames, series and indexes have equal digests, in whatever
process. As in `_variables` no code of the user runs, so every other value has none; neither has a container that holds
one. An element that is part of itself, or too deep, has none either.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ._variables import _is_a, list_variables

MAX_DEPTH = 50
MAX_ITEMS = 5_000_000
"""Of containers, in one variable; some seconds. Arrays have no such bound: a GiB takes some 2 s."""

DIGEST_BYTES = 16


class NoDigest(Exception):
    """Of this value there is none."""


def digest_variables(namespace: Mapping[str, Any], hidden: Mapping[str, Any]) -> dict[str, Any]:
    """As `list_variables`, with ``digest`` (hex, or None) and without what only people need."""
    listed = list_variables(namespace, hidden)
    kept = ("name", "type", "summary", "size_bytes")
    variables = [{fact: entry[fact] for fact in kept} for entry in listed["variables"]]
    for entry in variables:
        entry["digest"] = digest(namespace.get(entry["name"]))
    return {"variables": variables, "truncated": listed["truncated"]}


def digest(value: Any) -> str | None:
    """Of one value; None when there is none."""
    try:
        return _Digest().of(value, MAX_DEPTH).hex()
    except Exception:  # libraries raise what they like, and a cell may change the value meanwhile
        return None


class _Digest:
    """Counts what it looks at."""

    def __init__(self) -> None:
        self._items = MAX_ITEMS

    def of(self, value: Any, depth: int) -> bytes:
        """A digest of the type and the content."""
        kind = type(value)
        self._items -= 1
        if depth == 0 or self._items < 0:
            raise NoDigest
        if kind in (list, tuple):
            return _hash(kind.__name__, b"".join([self.of(item, depth - 1) for item in value]))
        if kind in (set, frozenset):
            return _hash(kind.__name__, b"".join(sorted(self.of(item, depth - 1) for item in value)))
        if kind is dict:
            pairs = [self.of(key, depth - 1) + self.of(item, depth - 1) for key, item in value.items()]
            return _hash("dict", b"".join(pairs))  # dicts that differ in their order behave differently
        return _hash(f"{kind.__module__}.{kind.__qualname__}", self._content(value, kind, depth))

    def _content(self, value: Any, kind: type, depth: int) -> Any:
        if kind in _SCALARS:
            return _SCALARS[kind](value)
        module = kind.__module__.partition(".")[0] if _is_a(kind.__module__, str) else ""
        if module == "numpy" and "numpy" in sys.modules:
            return self._array(value, depth)
        if module == "pandas" and "pandas" in sys.modules:
            return self._frame(value, depth)
        raise NoDigest

    def _array(self, value: Any, depth: int) -> bytes:
        numpy = sys.modules["numpy"]
        if type(value) is not numpy.ndarray and not isinstance(value, numpy.generic):
            raise NoDigest  # a masked array, say, is more than its elements
        shape = repr((value.dtype.str, value.shape)).encode()
        if value.dtype.hasobject:
            return shape + self.of(value.tolist(), depth - 1)
        return shape + _hash("", numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8))

    def _frame(self, value: Any, depth: int) -> bytes:
        pandas = sys.modules["pandas"]
        if isinstance(value, pandas.DataFrame):
            parts = [value.index, value.columns, *(value.iloc[:, at] for at in range(value.shape[1]))]
            return b"".join(self.of(part, depth - 1) for part in parts)
        if isinstance(value, pandas.Series):
            return self.of(value.index, depth - 1) + self._values(value, depth)
        if isinstance(value, pandas.Index):
            return self._values(value, depth)
        if isinstance(value, (pandas.Timestamp, pandas.Timedelta)):
            return repr(value).encode()
        raise NoDigest

    def _values(self, value: Any, depth: int) -> bytes:
        """Name, type and elements. What lies in another store than numpy's is taken out element by element."""
        head = self.of(value.name, depth - 1) + str(value.dtype).encode()
        plain = value.to_numpy()
        if plain.dtype.hasobject:
            return head + self.of([_plain(item) for item in plain.tolist()], depth - 1)
        return head + self.of(plain, depth - 1)


def _plain(item: Any) -> Any:
    """pandas' own "no value" is a singleton of a class of its own."""
    pandas = sys.modules["pandas"]
    return "<NA>" if item is pandas.NA or item is pandas.NaT else item


def _hash(kind: str, content: Any) -> bytes:
    made = hashlib.blake2b(kind.encode() + b"\0", digest_size=DIGEST_BYTES)
    made.update(content)
    return made.digest()


def _integer(value: int) -> bytes:
    return value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True)


_SCALARS: dict[type, Callable[[Any], bytes]] = {
    int: _integer,
    bool: _integer,
    float: lambda value: struct.pack(">d", value),
    complex: lambda value: struct.pack(">dd", value.real, value.imag),
    str: lambda value: value.encode("utf-8", "surrogatepass"),
    bytes: lambda value: value,
    bytearray: bytes,
    type(None): lambda _: b"",
    type(Ellipsis): lambda _: b"",
    range: lambda value: repr(value).encode(),
}
