"""Preambles: bytes that bring a terminal from some modes into others. Pure.

Their order matters: the screen first (modes belong to it), then what moves the cursor (region, origin), colours last.
The cursor's place is not restored: knowing it takes a screen, and a preamble is needed only where output was lost.
"""

from __future__ import annotations

from cloche_guest.terminals.modes import DEFAULT_PRIVATE, FRESH, Modes


def preamble(new: Modes, old: Modes = FRESH) -> bytes:
    """From ``old`` (a terminal after a reset, by default) to ``new``. Empty when nothing differs."""
    parts = [*_screen(old, new), *_private(old, new), *_others(old, new)]
    return b"".join(parts)


def _screen(old: Modes, new: Modes) -> list[bytes]:
    parts = _screens(old, new)
    if new.title != old.title:
        parts.append(b"\x1b]2;" + new.title + b"\x07")
    if new.region != old.region:
        parts.append(b"\x1b[r" if new.region is None else b"\x1b[%d;%sr" % (new.region[0], _bottom(new.region[1])))
    return parts


def _screens(old: Modes, new: Modes) -> list[bytes]:
    """Which screen is shown, and the keyboard flags of both: each can only be set while its screen is shown."""
    (old_normal, old_alternate), (new_normal, new_alternate) = old.keyboards, new.keyboards
    parts, alternate = [], old.alternate
    if alternate and (not new.alternate or old_normal != new_normal):
        parts.append(b"\x1b[?1049l")
        alternate, old_alternate = False, ()
    parts += _flags(old_normal, new_normal)
    if new.alternate and not alternate:
        parts.append(b"\x1b[?1049h")
    return parts + (_flags(old_alternate, new_alternate) if new.alternate else [])


def _flags(old: tuple[int, ...], new: tuple[int, ...]) -> list[bytes]:
    if old == new:
        return []
    return [*([b"\x1b[<%du" % len(old)] if old else []), *(b"\x1b[>%du" % flags for flags in new)]


def _bottom(row: int) -> bytes:
    return b"%d" % row if row else b""


def _private(old: Modes, new: Modes) -> list[bytes]:
    before, after = dict(old.private), dict(new.private)
    parts = []
    for number in sorted(before.keys() | after.keys()):
        default = DEFAULT_PRIVATE[number]
        on = after.get(number, default)
        if on != before.get(number, default):
            parts.append(b"\x1b[?%d%s" % (number, b"h" if on else b"l"))
    return parts


def _others(old: Modes, new: Modes) -> list[bytes]:
    parts = []
    if new.insert != old.insert:
        parts.append(b"\x1b[4h" if new.insert else b"\x1b[4l")
    if new.newline != old.newline:
        parts.append(b"\x1b[20h" if new.newline else b"\x1b[20l")
    for mark, before, after in zip(b"()*+", old.charsets, new.charsets, strict=True):
        if before != after:
            parts.append(b"\x1b%c%s" % (mark, after))
    if new.shift != old.shift:
        parts.append(b"\x0e" if new.shift else b"\x0f")
    if new.keypad != old.keypad:
        parts.append(b"\x1b=" if new.keypad else b"\x1b>")
    if new.cursor_style != old.cursor_style:
        parts.append(b"\x1b[%d q" % new.cursor_style)
    if new.sgr != old.sgr:
        parts.append(b"\x1b[" + b";".join([b"0", *(value for _, value in new.sgr)]) + b"m")
    return parts
