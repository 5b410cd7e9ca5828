"""Which shell a terminal runs."""

from __future__ import annotations

from pathlib import Path

from cloche.models.programs import Program
from cloche_guest.programs import SHELLS, argv_of, first_shell


def test_the_preferred_shell_is_one_that_can_run(tmp_path: Path) -> None:
    """A directory may be "executed", too: with SHELL=/tmp no terminal began."""
    shell = tmp_path / "sh"
    shell.write_text("#!/bin/sh\n")
    others = [first_shell(text) for text in (str(tmp_path), str(shell), str(tmp_path / "none"), "")]
    assert set(others) == {first_shell()} <= set(SHELLS)
    shell.chmod(0o755)
    assert first_shell(str(shell)) == str(shell)
    assert argv_of(Program(), first_shell(str(shell))) == [str(shell)]
