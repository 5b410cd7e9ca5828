"""From a path to its routes. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cloche_server.routing._params import path_value
from cloche_server.routing._route import Route


@dataclass(frozen=True, slots=True)
class Matched:
    """The methods of a path. A parameter whose text cannot be a value is in ``bad`` (name -> text)."""

    methods: Mapping[str, Route]
    path: Mapping[str, str]
    bad: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Template:
    segments: tuple[str, ...]
    methods: Mapping[str, Route]

    def match(self, segments: Sequence[str]) -> dict[str, str] | None:
        values = {}
        for wanted, given in zip(self.segments, segments, strict=True):
            if wanted.startswith("{"):
                values[wanted[1:-1]] = given
            elif wanted != given:
                return None
        return values


class RouteIndex:
    """Templates by number of segments; those with fewer parameters are tried first."""

    def __init__(self, routes: Sequence[Route]) -> None:
        methods: dict[str, dict[str, Route]] = defaultdict(dict)
        for route in routes:
            if route.method in methods[route.path]:
                raise ValueError(f"two routes for {route.method} {route.path}")
            methods[route.path][route.method] = route
        self._by_length: dict[int, list[_Template]] = defaultdict(list)
        for path in sorted(methods, key=lambda path: path.count("{")):
            segments = tuple(path.split("/"))
            self._by_length[len(segments)].append(_Template(segments, methods[path]))

    def match(self, path: str) -> Matched | None:
        """None: no such path."""
        segments = path.split("/")
        for template in self._by_length.get(len(segments), ()):
            raw = template.match(segments)
            if raw is not None:
                values = {name: path_value(name, text) for name, text in raw.items()}
                good = {name: value for name, value in values.items() if value is not None}
                bad = {name: raw[name] for name, value in values.items() if value is None}
                return Matched(template.methods, good, bad)
        return None
