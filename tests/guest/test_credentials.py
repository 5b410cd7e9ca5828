"""Being another user for a moment: this thread only, and back again."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cloche_guest.credentials import being, can_be_another

NOBODY = 65534
pytestmark = pytest.mark.skipif(not can_be_another(), reason="needs root")


def ids(thread: str = "thread-self") -> list[list[str]]:
    lines = Path(f"/proc/{thread}/status").read_text().splitlines()
    return [line.split()[1:] for line in lines if line.startswith(("Uid:", "Gid:", "Groups:", "CapEff:"))]


def test_a_program_that_is_started_has_nothing_of_ours() -> None:
    with being(NOBODY, NOBODY, [NOBODY]):
        told = subprocess.run(["/bin/cat", "/proc/self/status"], capture_output=True, text=True, check=True, cwd="/")
    found = {line.split(":")[0]: line.split()[1:] for line in told.stdout.splitlines()}
    assert found["Uid"] == found["Gid"] == [str(NOBODY)] * 4
    assert found["Groups"] == [str(NOBODY)]
    assert found["CapPrm"] == found["CapEff"] == ["0" * 16]


def test_it_is_this_thread_alone_and_only_for_the_moment() -> None:
    before = ids()
    with being(NOBODY, NOBODY, [NOBODY]):
        assert os.geteuid() == NOBODY
        assert ids()[0] == [str(NOBODY), str(NOBODY), "0", str(NOBODY)]
    assert ids() == before


def test_an_error_within_leaves_us_as_we_were() -> None:
    before = ids()
    with pytest.raises(FileNotFoundError), being(NOBODY, NOBODY, [NOBODY]):
        subprocess.Popen(["/no/such/program"])
    assert ids() == before
