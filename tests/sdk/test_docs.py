"""The documents say what is there: commands, options, names."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from textwrap import dedent

import pytest

import cloche
from cloche.cli._app import ENTRIES

ROOT = Path(__file__).parents[2]
SDK = (ROOT / "docs/sdk.md").read_text()
CLI = (ROOT / "docs/cli.md").read_text()
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("command", sorted(ENTRIES))
def test_every_command_is_documented(command: str) -> None:
    assert f"cloche {command}" in CLI or f"`{command} " in CLI


@pytest.mark.parametrize(
    "cls",
    [
        cloche.Files,
        cloche.Sandbox,
        cloche.Context,
        cloche.Contexts,
        cloche.RunHandle,
        cloche.Client,
        cloche.RunResult,
        cloche.Terminals,
        cloche.Terminal,
        cloche.Attachment,
        cloche.Process,
        cloche.Processes,
        cloche.Services,
        cloche.ExecResult,
        cloche.Preview,
        cloche.Volumes,
        cloche.Snapshots,
        cloche.Templates,
        cloche.Pools,
        cloche.Intents,
        cloche.ForkResult,
    ],
)
def test_every_public_method_is_documented(cls: type) -> None:
    names = {name for name in vars(cls) if not name.startswith("_")}
    names -= {"id", "name", "finished", "url"}  # said by their names
    missing = {name for name in names if not re.search(rf"\b{name}\b", SDK)}
    assert not missing


def test_every_option_of_run_is_documented() -> None:
    options = set(inspect.signature(cloche.Context.run).parameters) - {"self", "code"}
    assert not {option for option in options if f"`{option}`" not in SDK}


def test_the_ten_lines_of_the_readme_are_python_that_uses_what_there_is() -> None:
    block = README[README.index("    from cloche import") : README.index("Or from a shell")]
    tree = ast.parse(dedent(block))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    offered = {name for cls in (cloche.Sandbox, cloche.RunResult) for name in dir(cls)} | {"name", "value"}
    assert used <= offered


def test_the_fork_of_the_readme_is_python_that_uses_what_there_is() -> None:
    start = README.index("    with Sandbox.create() as sandbox:", README.index("## Fork a live kernel"))
    tree = ast.parse(dedent(README[start : README.index("\n\n", start)]))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert used <= {name for cls in (cloche.Sandbox, cloche.RunResult) for name in dir(cls)}
    assert {"fork", "snapshot", "restore"} <= used


@pytest.mark.parametrize("path", [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))], ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target, heading in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", path.read_text()):
        page = path.parent / target if target else path
        assert page.exists(), target
        assert not heading or heading in anchors(page), f"{target}#{heading}"


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_cells_of_the_first_analysis_are_python() -> None:
    source = (ROOT / "examples/first_analysis.py").read_text()
    cells = next(
        node.value
        for node in ast.parse(source).body
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "CELLS"
    )
    assert cells is not None
    for _title, code in ast.literal_eval(cells):
        ast.parse(dedent(code))
