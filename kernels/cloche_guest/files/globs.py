"""Glob patterns: the one meaning they have in lists, searches and watches. Pure; standard library only.

``*`` and ``?`` do not match ``/``; ``**`` as a whole part matches any number of directories; ``[a-z]`` and ``[!a-z]`` match one
character; everything else, braces and backslashes too, is itself. Without ``/`` a pattern matches names at any depth, with
one it matches paths relative to the directory searched. A directory that is excluded is excluded with all it holds.
"""

from __future__ import annotations

import re
from collections.abc import Sequence


def to_regex(pattern: str) -> str:
    """For ``fullmatch`` against a relative path."""
    anchored = "/" in pattern.rstrip("/")
    parts = [part for part in pattern.split("/") if part]
    pieces = [] if anchored else ["(?:[^/]+/)*"]
    for index, part in enumerate(parts):
        last = index == len(parts) - 1
        if part == "**":
            pieces.append(".+" if last else "(?:[^/]+/)*")
        else:
            pieces.append(_part_regex(part) + ("" if last else "/"))
    return "(?s:" + "".join(pieces) + ")"


def _part_regex(part: str) -> str:
    """Atomic groups, as in Python's own fnmatch: without them, many stars take exponential time on a name that does not fit."""
    runs = [""]
    index = 0
    while index < len(part):
        character = part[index]
        if character == "*":
            runs.append("")
        elif character == "?":
            runs[-1] += "[^/]"
        elif character == "[" and (end := _class_end(part, index)) is not None:
            runs[-1] += _class_regex(part[index + 1 : end])
            index = end
        else:
            runs[-1] += re.escape(character)
        index += 1
    if len(runs) == 1:
        return runs[0]
    middle = "".join(f"(?>[^/]*?{run})" for run in runs[1:-1] if run)
    return f"{runs[0]}{middle}[^/]*{runs[-1]}"


def _class_end(part: str, start: int) -> int | None:
    """The closing bracket; a ``]`` right behind the opening belongs to the class."""
    first = start + (2 if part[start + 1 : start + 2] == "!" else 1)
    end = part.find("]", first + 1)
    return None if end < 0 else end


def _class_regex(inside: str) -> str:
    negated = inside.startswith("!")
    escaped = re.sub(r"([\\\]\[^&~|])", r"\\\1", inside[1:] if negated else inside)
    body = f"[{'^/' if negated else ''}{escaped}]"
    try:
        re.compile(body)
    except re.error:  # a range that runs backwards matches nothing
        return "(?!)"
    return body


def to_ripgrep(pattern: str) -> str:
    """The same in ripgrep's syntax, where braces and backslashes have a meaning and ``!`` at the beginning negates."""
    escaped = re.sub(r"([{}\\])", r"\\\1", pattern)
    return "\\" + escaped if escaped.startswith("!") else escaped


class GlobFilter:
    """Include and exclude together."""

    def __init__(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        self._include = _compiled(include)
        self._exclude = _compiled(exclude)

    def excludes(self, path: str) -> bool:
        """This path, and if it is a directory all below it."""
        return self._exclude is not None and self._exclude.fullmatch(path) is not None

    def includes(self, path: str) -> bool:
        """Asked about paths whose directories are not excluded."""
        return not self.excludes(path) and (self._include is None or self._include.fullmatch(path) is not None)


def _compiled(patterns: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(to_regex(pattern) for pattern in patterns)) if patterns else None
