"""Screen text: what of a terminal in a sandbox may reach the user's own terminal in ``cloche shell``.

Pure. Full-screen programs need more than `TerminalFilter` lets through: modes, scroll regions, the alternate screen, line
drawing. What still must not pass is what makes the terminal do something for the program outside its screen: set the
clipboard or title (OSC), load or run things (DCS, APC, PM), resize or report windows, and above all *answer*: an answer is
typed, and a made-up one would be typed into the shell the user returns to. So reports are dropped, and programs that
wait for one go on without.
"""

from __future__ import annotations

import re
from typing import Final

from cloche.cli._terminal_text import ESC, INTERMEDIATES, KEPT_CONTROLS, STRING_STARTS, TerminalFilter

PRIVATE_MODES: Final = "(?:1|5|6|7|12|25|47|1000|1002|1003|1004|1005|1006|1015|1047|1048|1049|2004|2026)"

SCREEN_CSI: Final = re.compile(
    r"\x1b\["
    r"(?:[0-9;:]*[@ABCDEFGHIJKLMPSTXZ`abdefgmr]"
    rf"|\?{PRIVATE_MODES}(?:;{PRIVATE_MODES})*[hl]"
    r"|(?:4|20)[hl]"
    r"|[0-9]? q"
    r"|!p"
    r"|[su])"
)
"""Movement, editing, colours, regions, known modes, cursor shapes. No reports (c, n), no windows (t), no unknown modes."""

SCREEN_ESCAPES: Final = frozenset("78DEHM=>")
CHARSETS: Final = frozenset("0AB")
SCREEN_CONTROLS: Final = KEPT_CONTROLS | frozenset("\x07\x0b\x0c\x0e\x0f")

CLEAR: Final = "\x1b[!p\x1b[0m\x1b[r\x1b[2J\x1b[H"
"""For a full reset (ESC c), and before a replay: as fresh as a terminal gets without losing its scrollback."""

LEAVE: Final = (
    "\x1b[?1049l\x1b[?9;1000;1002;1003;1004;1005;1006;1015;2004;2026l"  # screen, mouse, focus, paste
    "\x1b[?1;5;6l\x1b[?7;25h\x1b[4;20l\x1b>"  # keys, video, origin, wrap, cursor, insert
    "\x1b(B\x0f\x1b[r\x1b[0m\x1b[0 q"  # line drawing, region, colours, cursor shape
)
"""Whatever was switched on, off. Regions home the cursor, so the position is saved around it."""


class ScreenFilter(TerminalFilter):
    """One terminal's filter."""

    def __init__(self) -> None:
        super().__init__()
        self._designator = ""

    def _step(self, character: str) -> str:
        if self._state == "charset":
            self._state = "text"
            known = self._designator in "()*+" and character in CHARSETS
            return f"{ESC}{self._designator}{character}" if known else ""
        return super()._step(character)

    def _text(self, character: str) -> str:
        return character if character in SCREEN_CONTROLS else super()._text(character)

    def _escape(self, character: str) -> str:
        if character in SCREEN_ESCAPES or character == "c":
            self._state = "text"
            return CLEAR if character == "c" else ESC + character
        if character in INTERMEDIATES and character not in STRING_STARTS:
            self._designator = character
        return super()._escape(character)

    def _in_csi(self, character: str) -> str:
        csi = self._csi + character
        passed = super()._in_csi(character)
        return csi if SCREEN_CSI.fullmatch(csi) else passed
