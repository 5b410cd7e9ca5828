"""What the documents show in Python does what they say, as it stands there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from cloche import Client, Sandbox

from .server_process import ServerProcess

ROOT = Path(__file__).parents[2]


def sample(document: str, heading: str) -> str:
    """The first block of Python behind ``heading``: fenced, or indented as far as its first line."""
    text = (ROOT / document).read_text()
    behind = text[text.index(heading) :]
    if "```python" in behind.split("\n## ")[0]:
        return behind.split("```python\n")[1].split("```")[0]
    lines = behind.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("    "))
    last = next(number for number, line in enumerate(lines) if number > first and line and line[0] != " ")
    return dedent("\n".join(lines[first:last]))


@pytest.fixture
def client(server: ServerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Client]:
    """Of a user who has set what the documents name, in a directory of his own."""
    monkeypatch.setenv("CLOCHE_URL", server.url)
    monkeypatch.setenv("CLOCHE_API_KEY", server.key)
    monkeypatch.chdir(tmp_path)
    with Client() as made:
        yield made
        for snapshot in made.snapshots.list():  # their names are free for the next document
            made.snapshots.delete(snapshot.id)


def run(code: str, **names: object) -> None:
    exec(compile(code, "sample", "exec"), {"Sandbox": Sandbox, "Client": Client, **names})


def test_the_ten_lines_of_the_readme(client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(sample("README.md", "## Ten lines"))
    assert capsys.readouterr().out.split() == ["45", "drawn", "ZeroDivisionError", "division", "by", "zero"]
    assert (tmp_path / "plots/image-1.png").read_bytes().startswith(b"\x89PNG")


def test_the_fork_of_the_readme(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    before = {one.id for one in client.list_sandboxes()}
    run(sample("README.md", "## Fork a live kernel"))
    *means, size = capsys.readouterr().out.split()
    assert [round(float(mean[mean.find("(") + 1 :].rstrip(")"))) for mean in means] == [50_000, 100_000, 150_000]
    assert size == "1000000"
    assert {one.id for one in client.list_sandboxes()} <= before


def test_forks_of_the_sdk_page(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    run(sample("docs/sdk.md", "## Rest, snapshots, forks"))
    assert "name='rows', change='changed'" in capsys.readouterr().out
    assert "loaded" not in [one.name for one in client.snapshots.list()]


def test_the_snapshots_page(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    run(sample("docs/snapshots.md", "# Snapshots"))
    assert capsys.readouterr().out.strip() == str(["1000"] * 5)


def test_processes_and_terminals(client: Client, capsys: pytest.CaptureFixture[str]) -> None:
    with Sandbox.create(driver="runc", name="dev") as sandbox:
        run(sample("docs/sdk.md", "## Processes"), sandbox=sandbox)
        assert capsys.readouterr().out.startswith("0 1\n")
        run(sample("docs/sdk.md", "## Terminals"), sandbox=sandbox)
        assert capsys.readouterr().out == "5\n"
        run(sample("docs/terminals.md", "# Terminals"))
        assert capsys.readouterr().out == "5\n"
