"""What a terminal in a sandbox may do to the user's own."""

from __future__ import annotations

import pytest

from cloche.cli._screen_text import CLEAR, ScreenFilter

PASSES = [
    "plain text\r\n\t\b\x07",
    "\x1b[1;31mred\x1b[0m",
    "\x1b[?1049h\x1b[?1;25l\x1b[?2004h\x1b[?1000;1006h",
    "\x1b[2;20r\x1b[5L\x1b[3M\x1b[2P\x1b[4@\x1b[3S\x1b[2T\x1b[7X",
    "\x1b7\x1b8\x1bM\x1b=\x1b>",
    "\x1b(0lqk\x1b(B\x0e\x0f",
    "\x1b[4h\x1b[4l\x1b[2 q\x1b[!p",
    "grüße 日本語 😀",
]

DROPPED = [
    "\x1b]52;c;ZXZpbA==\x07",  # sets the clipboard
    "\x1b]52;c;?\x07",  # asks for it
    "\x1b]0;title\x07",
    "\x1b]8;;javascript:alert(1)\x1b\\",
    "\x1b]9;notify\x07",
    "\x1b]1337;File=name=x:AAAA\x07",
    "\x1b]7;file:///etc\x07",
    "\x1bP$qm\x1b\\",  # DECRQSS
    "\x1bP+q544e\x1b\\",  # XTGETTCAP
    "\x1b_Gi=1;AAAA\x1b\\",
    "\x1b^private\x1b\\",
    "\x1b[c",  # device attributes
    "\x1b[>c",
    "\x1b[6n",  # where is the cursor
    "\x1b[?6n",
    "\x1b[21t",  # report the title
    "\x1b[8;10;10t",
    "\x1b[?1337h",
    "\x1b[?1049$p",
    "\x1b[>4;2m",
    "\x05",  # ENQ
    "\x9b6n",
    "\x9d52;c;AA\x9c",
    "\x1bZ",
    "\x1b(X",
]


@pytest.mark.parametrize("text", PASSES)
def test_what_full_screen_programs_need_passes(text: str) -> None:
    assert ScreenFilter().feed(text) == text
    one_by_one = ScreenFilter()
    assert "".join(one_by_one.feed(character) for character in text) == text


@pytest.mark.parametrize("text", DROPPED)
def test_what_reaches_beyond_the_screen_does_not(text: str) -> None:
    assert ScreenFilter().feed(f"a{text}b") == "ab"
    one_by_one = ScreenFilter()
    assert "".join(one_by_one.feed(character) for character in f"a{text}b") == "ab"


def test_a_full_reset_clears_the_screen_only() -> None:
    assert ScreenFilter().feed("\x1bc") == CLEAR


def test_an_endless_string_does_not_swallow_the_next_line() -> None:
    assert ScreenFilter().feed("\x1b]0;binary\nhello") == "\nhello"
