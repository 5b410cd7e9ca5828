"""What of a sandbox's output may reach a terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.cli._terminal_text import TerminalFilter, plain


def shown(*pieces: str) -> str:
    kept = TerminalFilter()
    return "".join(kept.feed(piece) for piece in pieces)


@pytest.mark.parametrize(
    "text",
    [
        "plain text\n",
        "tab\tcr\rback\b",
        "\x1b[1;31mred\x1b[0m",
        "\x1b[38;2;1;2;3mtrue colour\x1b[m",
        "\x1b[38:5:9mcolons",
        "50%\r\x1b[K100%\n",
        "\x1b[2A\x1b[10Gmoved",
        "é 😀 👩‍💻 \u202eright to left",
    ],
)
def test_text_colours_and_movement_pass(text: str) -> None:
    assert shown(text) == text


@pytest.mark.parametrize(
    "sequence",
    [
        "\x1b]52;c;ZXZpbA==\x07",  # sets the clipboard
        "\x1b]52;c;ZXZpbA==\x1b\\",
        "\x1b]0;title\x07",
        "\x1b]2;title\x9c",
        "\x1b]8;;http://evil\x1b\\",
        "\x9d0;title\x07",
        "\x1bPq#0;2;0;0;0\x1b\\",  # sixel
        "\x1bP$qm\x1b\\",  # DECRQSS: the terminal types an answer
        "\x90q\x9c",
        "\x1b_apc\x1b\\",
        "\x1b^pm\x1b\\",
        "\x1bXsos\x1b\\",
        "\x1b[c",  # device attributes: typed answer
        "\x1b[6n",
        "\x1b[21t",  # reports the title
        "\x1b[?1049h",
        "\x1b[?1000h",
        "\x1b[>4;1m",
        "\x1b[!p",
        "\x1b[1;5r",
        "\x9b6n",
        "\x05",  # ENQ: typed answerback
        "\x07",
        "\x0e",
        "\x1bc",  # full reset
        "\x1b(0",  # line drawing instead of letters
        "\x1b#8",
        "\x00",
        "\x7f",
    ],
)
def test_what_commands_the_terminal_is_dropped_wherever_it_is_split(sequence: str) -> None:
    assert shown(f"a{sequence}b") == "ab"
    for at in range(1, len(sequence)):
        assert shown("a" + sequence[:at], sequence[at:] + "b") == "ab"


def test_an_unfinished_string_ends_with_its_line() -> None:
    assert shown("\x1b]0;never ended\nnext line\n") == "\nnext line\n"


def test_a_sequence_without_end_is_given_up() -> None:
    assert shown("\x1b[" + "1;" * 40 + "end").endswith("end")


def test_an_escape_inside_a_string_starts_over() -> None:
    assert shown("\x1b]0;a\x1b[31mred") == "\x1b[31mred"


PIECES = st.lists(
    st.text(alphabet=st.sampled_from("\x1b[]PX^_\\;?0159mchnt\x07\x9b\x9c\x9d\x90\x18\n\r ab(#"), max_size=8)
)
ALLOWED = re.compile(r"(?:[^\x00-\x1f\x7f-\x9f]|[\t\n\r\b]|\x1b\[[0-9;:]*[ABCDEFGHJKXdfm])*")


@given(PIECES)
def test_only_allowed_sequences_ever_come_out(pieces: list[str]) -> None:
    assert ALLOWED.fullmatch(shown(*pieces))


@given(PIECES)
def test_pieces_do_not_matter(pieces: list[str]) -> None:
    assert shown(*pieces) == shown("".join(pieces))


@given(st.text())
def test_plain_is_one_printable_line(text: str) -> None:
    assert plain(text).isprintable()


def test_plain_shows_what_was_there() -> None:
    assert plain("a\x1b]0;x\x07\u202e\nb é") == r"a\x1b]0;x\x07\u202e\nb é"
