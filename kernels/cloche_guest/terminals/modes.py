"""Modes: what a terminal's output has switched on, and where its bytes may be cut. Pure.

A tracker reads the output in chunks of any size and knows at every moment (1) the modes in force, so that a later
reader can be brought into them, and (2) where the parser was last at *ground*: outside every escape sequence, string and
UTF-8 character. It keeps no screen: a regular expression looks at escape sequences only, so plain text costs nothing
(measured: 30 MB/s on dense TUI output, over 1 GB/s on plain text).

States between chunks:

| state | held back | left by |
|---|---|---|
| ground | nothing | ESC |
| sequence | its bytes, at most 4 KiB | its final byte; CAN, SUB |
| string (OSC, DCS, SOS, PM, APC) | where it began, its first 4 KiB | BEL (OSC only), CAN, SUB, ESC |
| character | its bytes, at most 3 | its last byte |

The alternate screen is special: sequences that enter or leave it are *cuts*, so that its output can be dropped apart.
C1 controls in their eight-bit form are not looked for: they are not valid UTF-8, and nothing in use sends them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

ALTERNATE: Final = frozenset({47, 1047, 1049})

DEFAULT_PRIVATE: Final[Mapping[int, bool]] = {
    1: False,  # application cursor keys
    5: False,  # reverse video
    6: False,  # origin
    7: True,  # wrap around
    9: False,  # X10 mouse
    12: False,  # blinking cursor
    25: True,  # cursor shown
    45: False,  # reverse wrap around
    66: False,  # application keypad
    **dict.fromkeys((1000, 1001, 1002, 1003, 1004, 1005, 1006, 1015, 1016), False),  # mouse and focus
    1034: False,
    1036: False,
    2004: False,  # bracketed paste
    2031: False,  # colour scheme reports
}
"""Private modes that are tracked, and how a terminal starts. 2026 (synchronized output) is not: a reader that joins in
the middle of an update must not wait for its end."""

MAX_HELD_BYTES: Final = 4096
"""No sequence in use is longer; titles are cut to this by terminals, too."""

MAX_KEYBOARD_DEPTH: Final = 16
"""Kitty's protocol lets terminals bound the stack; kitty itself keeps 8 and drops the oldest."""

CharSets = tuple[bytes, bytes, bytes, bytes]
_ASCII: Final[CharSets] = (b"B", b"B", b"B", b"B")


@dataclass(frozen=True, slots=True)
class Modes:
    """A snapshot. ``private`` and ``sgr`` hold only what differs from a fresh terminal, in a fixed order."""

    alternate: bool = False
    private: tuple[tuple[int, bool], ...] = ()
    insert: bool = False
    newline: bool = False
    sgr: tuple[tuple[str, bytes], ...] = ()
    region: tuple[int, int] | None = None
    charsets: CharSets = _ASCII
    shift: int = 0
    keypad: bool = False
    cursor_style: int = 0
    title: bytes = b""
    keyboards: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    """Kitty's keyboard flags: the stacks of the normal and of the alternate screen."""


FRESH: Final = Modes()


@dataclass(frozen=True, slots=True)
class Cut:
    """The alternate screen is entered right behind `offset`, or was left right before it; `modes` are in force there."""

    offset: int
    modes: Modes
    enters: bool


_CSI_PARAMS: Final = rb"[\x00-\x17\x19\x1c-?\x7f]*"
"""Everything up to the final byte: parameters, intermediates, and controls, which terminals obey in between."""

_SEQUENCE: Final = (
    rb"\x1b(?:\[(" + _CSI_PARAMS + rb")([hlmrpqu])"
    rb"|\]([^\x07\x18\x1a\x1b]*)(?:[\x07\x18\x1a]|(?=\x1b))"
    rb"|[PX^_][^\x18\x1a\x1b]*(?:[\x18\x1a]|(?=\x1b))"
    rb"|([()*+])([0-~])"
    rb"|([=>c]))"
)
_SCAN: Final = re.compile(_SEQUENCE)
_SCAN_WITH_SHIFTS: Final = re.compile(_SEQUENCE + rb"|([\x0e\x0f])")
"""Shift out and in are rare; a second first byte would make the search ten times slower for everybody."""

_UNFINISHED: Final = re.compile(
    rb"\x1b(?:\[" + _CSI_PARAMS + rb"|[ -/]*|(\])[^\x07\x18\x1a\x1b]*|([PX^_])[^\x18\x1a\x1b]*)?"
)
_OSC_END: Final = re.compile(rb"[\x07\x18\x1a\x1b]")
_STRING_END: Final = re.compile(rb"[\x18\x1a\x1b]")


@dataclass(slots=True)
class _String:
    """A string that goes on in the next chunk."""

    offset: int
    is_osc: bool
    start: bytes


@dataclass(slots=True)
class _State:
    """The modes, while they change."""

    alternate: bool = False
    private: dict[int, bool] = field(default_factory=dict)
    insert: bool = False
    newline: bool = False
    sgr: dict[str, bytes] = field(default_factory=dict)
    region: tuple[int, int] | None = None
    charsets: list[bytes] = field(default_factory=lambda: list(_ASCII))
    shift: int = 0
    keypad: bool = False
    cursor_style: int = 0
    title: bytes = b""
    keyboards: dict[bool, list[int]] = field(default_factory=lambda: {False: [], True: []})
    """By screen: the alternate one has a stack of its own."""

    def snapshot(self) -> Modes:
        g0, g1, g2, g3 = self.charsets
        return Modes(
            alternate=self.alternate,
            private=tuple(sorted(self.private.items())),
            insert=self.insert,
            newline=self.newline,
            sgr=tuple(sorted(self.sgr.items())),
            region=self.region,
            charsets=(g0, g1, g2, g3),
            shift=self.shift,
            keypad=self.keypad,
            cursor_style=self.cursor_style,
            title=self.title,
            keyboards=(tuple(self.keyboards[False]), tuple(self.keyboards[True])),
        )


class ModeTracker:
    """Follows one terminal's output from its first byte."""

    def __init__(self) -> None:
        self._state = _State()
        self._held = b""
        self._string: _String | None = None
        self._head = 0
        self._cuts: list[Cut] = []

    @property
    def ground_offset(self) -> int:
        """The last place at or before the head where the parser was at ground."""
        if self._string is not None:
            return self._string.offset
        return self._head - len(self._held)

    @property
    def title(self) -> bytes:
        """As the program set it."""
        return self._state.title

    def snapshot(self) -> Modes:
        """The modes in force at `ground_offset`."""
        return self._state.snapshot()

    def feed(self, data: bytes) -> list[Cut]:
        """Follow on; returns the cuts that were completed."""
        self._cuts = []
        start, self._head = self._head, self._head + len(data)
        at = 0
        if self._string is not None:
            end = self._string_end(self._string, data)
            if end is None:
                return self._cuts
            at = end
        buffer = self._held + data if self._held else data
        self._scan(buffer, at, start - len(self._held))
        self._hold_back(buffer, at, start - len(self._held))
        return self._cuts

    def resized(self) -> None:
        """A new size resets the scroll region, as xterm.js and others do it."""
        self._state.region = None

    def _string_end(self, string: _String, data: bytes) -> int | None:
        """Where scanning goes on; None while the string does."""
        found = (_OSC_END if string.is_osc else _STRING_END).search(data)
        room = MAX_HELD_BYTES - len(string.start)
        if found is None:
            string.start += data[:room]
            return None
        if string.is_osc:
            self._osc(string.start + data[: min(found.start(), room)])
        self._string = None
        return found.start() if found[0] == b"\x1b" else found.end()

    def _scan(self, buffer: bytes, at: int, base: int) -> None:
        shifts = b"\x0e" in buffer or b"\x0f" in buffer
        pattern = _SCAN_WITH_SHIFTS if shifts else _SCAN
        for match in pattern.finditer(buffer, at):
            kind = match.lastindex
            if kind == 2:
                self._csi(match, base)
            elif kind == 3:
                self._osc(match[3])
            elif kind == 5:
                self._state.charsets[b"()*+".index(match[4])] = match[5]
            elif kind == 6:
                self._simple(match, base)
            elif kind == 7:
                self._state.shift = 1 if match[7] == b"\x0e" else 0

    def _hold_back(self, buffer: bytes, at: int, base: int) -> None:
        """What is unfinished at the end of the buffer."""
        self._held = b""
        escape = buffer.rfind(b"\x1b", at)
        if escape >= 0 and (match := _UNFINISHED.fullmatch(buffer, escape)) is not None:
            if match.lastindex is not None:
                self._string = _String(base + escape, match.lastindex == 1, buffer[escape + 2 :][:MAX_HELD_BYTES])
            elif len(buffer) - escape <= MAX_HELD_BYTES:
                self._held = buffer[escape:]
            return
        self._held = unfinished_character(buffer[-3:])

    def _csi(self, match: re.Match[bytes], base: int) -> None:
        params, final = match[1], match[2]
        if final == b"m":
            if not params.startswith((b">", b"?", b"<", b"=")):
                for slot, value in _sgr(params):
                    _apply_sgr(self._state.sgr, slot, value)
        elif final in b"hl":
            self._set_modes(match, base, on=final == b"h")
        else:
            handler = _OTHER_CSI.get(final)
            if handler is not None:
                handler(self._state, params)

    def _set_modes(self, match: re.Match[bytes], base: int, *, on: bool) -> None:
        params = match[1]
        state = self._state
        if not params.startswith(b"?"):
            numbers = _numbers(params)
            state.insert = on if 4 in numbers else state.insert
            state.newline = on if 20 in numbers else state.newline
            return
        numbers = _numbers(params[1:])
        if on and not state.alternate and not ALTERNATE.isdisjoint(numbers):
            self._cuts.append(Cut(base + match.start(), state.snapshot(), enters=True))
        for number in numbers:
            default = DEFAULT_PRIVATE.get(number)
            if default is None:
                continue
            if on == default:
                state.private.pop(number, None)
            else:
                state.private[number] = on
        if not ALTERNATE.isdisjoint(numbers):
            self._set_alternate(on, base + match.end())

    def _set_alternate(self, on: bool, end: int) -> None:
        left = self._state.alternate and not on
        self._state.alternate = on
        if left:
            self._state.keyboards[True].clear()  # its next user begins with none
            self._cuts.append(Cut(end, self._state.snapshot(), enters=False))

    def _simple(self, match: re.Match[bytes], base: int) -> None:
        if match[6] != b"c":
            self._state.keypad = match[6] == b"="
            return
        left, self._state = self._state.alternate, _State()
        if left:
            self._cuts.append(Cut(base + match.end(), FRESH, enters=False))

    def _osc(self, text: bytes) -> None:
        number, separator, value = text.partition(b";")
        if separator and number in (b"0", b"2"):
            self._state.title = value[:MAX_HELD_BYTES].translate(None, _CONTROLS)


_CONTROLS: Final = bytes(range(32)) + b"\x7f"


def _region(state: _State, params: bytes) -> None:
    if params and not params[0:1].isdigit() and params[0:1] != b";":
        return  # private marks: restore modes
    top, bottom, *_ = [*_numbers(params, empty=0), 0, 0]
    state.region = (max(top, 1), bottom) if top > 1 or bottom else None


def _cursor_style(state: _State, params: bytes) -> None:
    if params.endswith(b" "):
        state.cursor_style = next(iter(_numbers(params[:-1])), 0) % 7


def _soft_reset(state: _State, params: bytes) -> None:
    if params == b"!":
        for number in (6, 7, 25, 1):
            state.private.pop(number, None)
        state.insert = state.keypad = False
        state.sgr, state.region, state.charsets, state.shift = {}, None, list(_ASCII), 0


def _keyboard(state: _State, params: bytes) -> None:
    stack = state.keyboards[state.alternate]
    numbers = _numbers(params[1:])
    if params.startswith(b">"):
        stack.append((numbers or [0])[0] & 31)
        del stack[:-MAX_KEYBOARD_DEPTH]
    elif params.startswith(b"<"):
        count = (numbers or [1])[0] or 1
        del stack[max(0, len(stack) - count) :]
    elif params.startswith(b"="):
        flags, how, *_ = [*numbers, 1, 1] if len(numbers) < 2 else numbers
        old = stack.pop() if stack else 0
        stack.append({1: flags, 2: old | flags, 3: old & ~flags}.get(how, old) & 31)


_OTHER_CSI: Final[Mapping[bytes, Callable[[_State, bytes], None]]] = {
    b"r": _region,
    b"q": _cursor_style,
    b"p": _soft_reset,
    b"u": _keyboard,
}


def _numbers(params: bytes, empty: int | None = None) -> list[int]:
    """The parameters that are numbers of a sane length."""
    found = []
    for part in params.split(b";"):
        if part.isdigit() and len(part) <= 5:
            found.append(int(part))
        elif not part and empty is not None:
            found.append(empty)
    return found


_SGR_SLOTS: Final[Mapping[int, str]] = {
    1: "bold",
    2: "faint",
    3: "italic",
    4: "underline",
    5: "blink",
    6: "blink",
    7: "inverse",
    8: "hidden",
    9: "strike",
    21: "underline",
    38: "foreground",
    48: "background",
    53: "overline",
    58: "line colour",
    **dict.fromkeys((*range(30, 38), *range(90, 98)), "foreground"),
    **dict.fromkeys((*range(40, 48), *range(100, 108)), "background"),
}
_SGR_CLEARS: Final[Mapping[int, tuple[str, ...]]] = {
    22: ("bold", "faint"),
    23: ("italic",),
    24: ("underline",),
    25: ("blink",),
    27: ("inverse",),
    28: ("hidden",),
    29: ("strike",),
    39: ("foreground",),
    49: ("background",),
    55: ("overline",),
    59: ("line colour",),
}


def _apply_sgr(sgr: dict[str, bytes], slot: str, value: bytes) -> None:
    if slot == "all":
        sgr.clear()
    elif value:
        sgr[slot] = value
    else:
        sgr.pop(slot, None)


@lru_cache(512)
def _sgr(params: bytes) -> tuple[tuple[str, bytes], ...]:
    """What one SGR sequence changes: ``(slot, value)``, an empty value clears. Cached: programs repeat themselves."""
    changes: list[tuple[str, bytes]] = []
    parts = params.split(b";")
    while parts:
        part = parts.pop(0)
        head = part.partition(b":")[0]
        code = int(head) if head.isdigit() and len(head) <= 4 else 0 if not head else -1
        if code == 0:
            changes.append(("all", b""))
        elif code in _SGR_CLEARS or part == b"4:0":
            slots = ("underline",) if part == b"4:0" else _SGR_CLEARS[code]
            changes += [(slot, b"") for slot in slots]
        elif code in (38, 48, 58) and b":" not in part:
            count = {b"5": 2, b"2": 4}.get(parts[0], 0) if parts else 0
            colour, parts = parts[:count], parts[count:]
            if len(colour) == count and count:
                changes.append((_SGR_SLOTS[code], b";".join([part, *colour])))
        elif code in _SGR_SLOTS:
            changes.append((_SGR_SLOTS[code], part))
    return tuple(changes)


def unfinished_character(tail: bytes) -> bytes:
    """The bytes at the end that begin a UTF-8 character which is not complete. ``tail``: the last three bytes or fewer."""
    for back in range(1, len(tail) + 1):
        byte = tail[-back]
        if byte & 0xC0 == 0x80:
            continue
        needed = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return tail[-back:] if needed > back and byte <= 0xF4 else b""
    return b""
