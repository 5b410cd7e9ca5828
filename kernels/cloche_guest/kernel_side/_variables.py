"""Facts about the user's variables, gathered while a cell may be running, without running any code of the user.

A `__repr__`, `__len__` or property that the user wrote could hang, print or change state, so none is called. Values
of builtin types are shown by a bounded repr of our own; values of known libraries by the attributes those promise to
be cheap. Nothing is imported: a type that exists has its module loaded already.
"""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Mapping
from typing import Any

MAX_VARIABLES = 1000
SUMMARY_CHARS = 200
_ITEMS = 20
"""Items of a container that are looked at for its summary: more do not fit into 200 characters."""
_DEPTH = 3

_ARRAY_LIBRARIES = frozenset(
    ("numpy", "pandas", "polars", "torch", "scipy", "xarray", "pyarrow", "jax", "jaxlib", "cupy", "geopandas", "PIL")
)
"""Top-level packages whose shape, dtype, nbytes and len are attribute reads."""

_SCALARS: tuple[type, ...] = (
    int,
    float,
    complex,
    bool,
    type(None),
    str,
    bytes,
    bytearray,
    range,
    slice,
    type(Ellipsis),
)
_CONTAINERS: tuple[type, ...] = (list, tuple, set, frozenset, dict)
_SIZED: tuple[Any, ...] = (str, bytes, bytearray, range, *_CONTAINERS)


def list_variables(namespace: Mapping[str, Any], hidden: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a reply: ``variables`` sorted by name, and whether there were more."""
    names = sorted(name for name in list(namespace) if _is_listed(name, namespace, hidden))
    listed = names[:MAX_VARIABLES]
    return {
        "variables": [_describe(name, namespace[name]) for name in listed if name in namespace],
        "truncated": len(names) > MAX_VARIABLES,
    }


def _is_listed(name: str, namespace: Mapping[str, Any], hidden: Mapping[str, Any]) -> bool:
    if not _is_a(name, str) or name.startswith("_"):
        return False
    return name not in hidden or namespace.get(name) is not hidden[name]


def _describe(name: str, value: Any) -> dict[str, Any]:
    kind = type(value)
    facts: dict[str, Any] = {"name": name, "type": _type_name(kind)}
    for fact, read in (("shape", _shape), ("length", _length), ("dtype", _dtype), ("size_bytes", _size)):
        try:
            facts[fact] = read(value)
        except Exception:
            facts[fact] = None
    try:
        facts["summary"] = _summary(value)
    except Exception as error:
        facts["summary"] = f"<no summary: {type(error).__name__}>"
    return facts


def _is_a(value: Any, kinds: Any) -> bool:
    """``isinstance`` asks the value for its ``__class__``, which may be code of the user."""
    return issubclass(type(value), kinds)


def _type_name(kind: type) -> str:
    module = kind.__module__ if isinstance(kind.__module__, str) else ""
    return kind.__qualname__ if module in ("builtins", "") else f"{module}.{kind.__qualname__}"


def _is_library(value: Any) -> bool:
    module = type(value).__module__
    return _is_a(module, str) and module.partition(".")[0] in _ARRAY_LIBRARIES


def _shape(value: Any) -> list[int] | None:
    if not _is_library(value):
        return None
    shape = getattr(value, "shape", None)
    return [int(size) for size in shape] if shape is not None else None


def _dtype(value: Any) -> str | None:
    if not _is_library(value):
        return None
    dtype = getattr(value, "dtype", None)
    return str(dtype) if dtype is not None and not _is_a(dtype, types.MethodType) else None


def _length(value: Any) -> int | None:
    for kind in _SIZED:
        if _is_a(value, kind):
            return int(kind.__len__(value))
    return len(value) if _is_library(value) and hasattr(type(value), "__len__") else None


def _size(value: Any) -> int | None:
    if _is_library(value):
        nbytes = getattr(value, "nbytes", None)
        if _is_a(nbytes, int):
            return nbytes
        if type(value).__name__ in ("DataFrame", "Series"):
            usage = value.memory_usage(deep=False)
            return int(usage.sum() if hasattr(usage, "sum") else usage)
    return sys.getsizeof(value) if _is_foreign_method(value, "__sizeof__") else None


def _is_foreign_method(value: Any, name: str) -> bool:
    """The method is written in C, so it is not the user's."""
    return not isinstance(getattr(type(value), name, None), types.FunctionType)


def _summary(value: Any) -> str:
    text = _library_summary(value) if _is_library(value) else _bounded(value, _DEPTH)
    return text if len(text) <= SUMMARY_CHARS else text[: SUMMARY_CHARS - 1] + "…"


def _library_summary(value: Any) -> str:
    name = type(value).__name__
    if name == "DataFrame":
        rows, columns = value.shape
        return f"{rows} rows x {columns} columns: " + ", ".join(str(label) for label in list(value.columns)[:_ITEMS])
    if name == "Series":
        return f"{len(value)} values of {value.dtype}" + (f", named {value.name}" if value.name is not None else "")
    shape, dtype = _shape(value), _dtype(value)
    if shape == [] or (shape is not None and dtype is not None and _small(shape) and dtype != "object"):
        return " ".join(repr(value).split())
    return f"<{name}" + (f" {'x'.join(map(str, shape))}" if shape else "") + (f" of {dtype}" if dtype else "") + ">"


def _small(shape: list[int]) -> bool:
    count = 1
    for size in shape:
        count *= size
    return count <= 64


def _bounded(value: Any, depth: int) -> str:
    """A repr that looks at a bounded number of items and calls no method of the user."""
    kind = type(value)
    if kind in (str, bytes, bytearray):
        return repr(value[: SUMMARY_CHARS + 1])
    if kind is int and value.bit_length() > 600:  # str() of a huge int is quadratic, and limited since 3.11
        return f"<int of {value.bit_length()} bits>"
    if kind in _SCALARS:
        return repr(value)
    if kind in _CONTAINERS:
        return _bounded_container(value, kind, depth)
    return _named(value) or f"<{_type_name(kind)}>" + ("" if depth < _DEPTH else ", repr not run")


def _named(value: Any) -> str | None:
    """Modules, classes and functions by their name."""
    if _is_a(value, types.ModuleType):
        return f"<module {types.ModuleType.__getattribute__(value, '__name__')}>"
    if _is_a(value, type):
        return f"<class {_type_name(value)}>"
    if _is_a(value, types.FunctionType | types.BuiltinFunctionType):
        return f"<function {value.__name__}>"
    return None


def _bounded_container(value: Any, kind: type, depth: int) -> str:
    opening, closing = ("[", "]") if kind is list else ("(", ")") if kind is tuple else ("{", "}")
    if depth == 0 and value:
        return f"{opening}…{closing}"
    items = list(itertools.islice(value.items() if kind is dict else value, _ITEMS))
    if kind is dict:
        parts = [f"{_bounded(key, depth - 1)}: {_bounded(item, depth - 1)}" for key, item in items]
    else:
        parts = [_bounded(item, depth - 1) for item in items]
    parts += ["…"] if len(value) > len(items) else []
    text = ", ".join(parts) + ("," if kind is tuple and len(parts) == 1 else "")
    if kind is frozenset:
        return f"frozenset({{{text}}})" if items else "frozenset()"
    return "set()" if kind is set and not items else f"{opening}{text}{closing}"
