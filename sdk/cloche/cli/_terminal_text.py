"""Terminal text: what of a sandbox's output may reach a terminal.

Pure. A terminal obeys control sequences: they set the clipboard (OSC 52), the title, fonts and modes, and some make the
terminal *type* an answer into the user's shell (status reports, ENQ, DCS). Code in a sandbox must not reach that. So of
streamed output only text, ``\\t \\n \\r \\b``, colours, cursor movement and erasing pass; the rest is dropped. `plain`
is for single words in tables and messages: there controls are shown, not obeyed.

States of the filter:

| state | left by |
|---|---|
| text | ESC -> escape; C1 CSI -> csi; C1 OSC, DCS, SOS, PM, APC -> string |
| escape | ``[`` -> csi; ``] P X ^ _`` -> string; an intermediate byte -> charset; any other character -> text |
| charset | one character -> text |
| csi | a final byte -> text; a control or more than 64 characters -> text |
| string | BEL, ST, CAN, SUB, a line end -> text; ESC -> string escape |
| string escape | a backslash -> text; anything else as after ESC |
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

ESC: Final = "\x1b"
STRING_STARTS: Final = frozenset("]PX^_")
C1_STRINGS: Final = frozenset("\x90\x98\x9d\x9e\x9f")
STRING_ENDS: Final = frozenset("\x07\x9c\x18\x1a\n")
"""The line end is ours: an unfinished string from binary output must not swallow everything that follows."""

KEPT_CONTROLS: Final = frozenset("\t\n\r\b")
KEPT_CSI: Final = re.compile(r"\x1b\[[0-9;:]*[ABCDEFGHJKXdfm]")
"""Movement, erasing and colours with plain parameters; no modes (h, l), reports (c, n, t, x) or private marks."""

HARMLESS: Final = re.compile(r"[^\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]*")
"""Most output. Going through it character by character takes 100 ns each, a match next to nothing."""

LONGEST_CSI: Final = 64
"""The longest in use is a true-colour SGR of about 40 characters."""

INTERMEDIATES: Final = frozenset(" !\"#$%&'()*+,-./")


class TerminalFilter:
    """One stream's filter. Sequences may be split anywhere between calls of `feed`."""

    def __init__(self) -> None:
        self._state = "text"
        self._csi = ""

    def feed(self, text: str) -> str:
        """The part of ``text`` that may be shown."""
        if self._state == "text" and HARMLESS.fullmatch(text):
            return text
        return "".join(self._step(character) for character in text)

    def _step(self, character: str) -> str:
        match self._state:
            case "text":
                return self._text(character)
            case "escape":
                return self._escape(character)
            case "csi":
                return self._in_csi(character)
            case "string":
                return self._string(character)
            case "string escape":
                return self._string_escape(character)
        self._state = "text"  # charset: its one character
        return ""

    def _text(self, character: str) -> str:
        if character == ESC:
            self._state = "escape"
        elif character == "\x9b":
            self._start_csi()
        elif character in C1_STRINGS:
            self._state = "string"
        elif character in KEPT_CONTROLS or not _is_control(character):
            return character
        return ""

    def _escape(self, character: str) -> str:
        if character == "[":
            self._start_csi()
        elif character in STRING_STARTS:
            self._state = "string"
        elif character in INTERMEDIATES:
            self._state = "charset"
        elif character != ESC:
            self._state = "text"
            return character if character in KEPT_CONTROLS else ""
        return ""

    def _start_csi(self) -> None:
        self._state, self._csi = "csi", ESC + "["

    def _in_csi(self, character: str) -> str:
        self._csi += character
        if "@" <= character <= "~":
            self._state = "text"
            return self._csi if KEPT_CSI.fullmatch(self._csi) else ""
        if _is_control(character) or len(self._csi) > LONGEST_CSI:
            self._state = "text"
            return self._text(character)
        return ""

    def _string(self, character: str) -> str:
        if character == ESC:
            self._state = "string escape"
        elif character in STRING_ENDS:
            self._state = "text"
            return character if character in KEPT_CONTROLS else ""
        return ""

    def _string_escape(self, character: str) -> str:
        if character == "\\":
            self._state = "text"
            return ""
        self._state = "escape"
        return self._escape(character)


def plain(text: str) -> str:
    """``text`` as one line without effect on a terminal: controls and invisible characters are spelled out."""
    return text if text.isprintable() else "".join(map(_spelled, text))


def _is_control(character: str) -> bool:
    """C0, DEL and C1."""
    return unicodedata.category(character) == "Cc"


def _spelled(character: str) -> str:
    """Not only controls: format characters turn the direction of text, half surrogates cannot be encoded."""
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "surrogatepass").decode("ascii")
