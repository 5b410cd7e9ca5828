"""States, snapshots, forks, templates and pools on the command line."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from lifecycle_app import ARCHIVE
from protocol_app import App

from cloche import models
from cloche.cli._compare import lines_of
from cloche.cli._events import line_of as line_of_event
from cloche.cli._lifecycle import Duration, endings_of, origin_of
from cloche.models import SandboxState


@pytest.fixture
def box(run_cloche) -> str:
    return run_cloche("create", "--name", "box").out.strip()


def test_create_takes_a_lifecycle(run_cloche, app: App) -> None:
    done = run_cloche(
        *("create", "--idle-timeout", "30m", "--idle-action", "stop", "--max-lifetime", "2h", "--no-auto-resume"),
        *("--no-warm", "--template", "data@2"),
    )
    assert done.code == 0
    policy = {"idle_timeout_s": 1800.0, "idle_action": "stop", "max_lifetime_s": 7200.0, "auto_resume": False}
    assert app.bodies == [{"template": "data@2", "lifecycle": policy, "warm": False}]
    assert run_cloche("create", "--idle-action", "stop").code == 2
    assert run_cloche("create", "--idle-timeout", "soon").code == 2


def test_update_changes_what_is_said_and_keeps_the_rest(run_cloche, app: App) -> None:
    box = run_cloche(
        "create", "-l", "a=1", "-l", "b=2", "-m", "n=[1]", "-m", "t=text", "--idle-timeout", "1h"
    ).out.strip()
    assert app.bodies.pop()["metadata"] == {"n": [1], "t": "text"}
    done = run_cloche("update", box, "--name", "other", "-l", "c=3", "--rm-label", "a", "--rm-metadata", "n")
    assert (done.code, done.out) == (0, f"updated {box}\n")
    info = app.sandboxes[box]
    assert (info.name, info.labels, info.metadata) == ("other", {"b": "2", "c": "3"}, {"t": "text"})
    assert run_cloche("update", "other", "--delete-after", "7d", "--no-auto-resume", "-m", "n=null").code == 0
    assert info.labels == app.sandboxes[box].labels
    assert app.sandboxes[box].metadata == {"t": "text", "n": None}
    policy = app.sandboxes[box].lifecycle
    assert (policy.idle_timeout_s, policy.delete_after_s, policy.auto_resume) == (3600, 604_800, False)
    run_cloche("update", "other", "--idle-timeout", "never", "--auto-resume")
    policy = app.sandboxes[box].lifecycle
    assert (policy.idle_timeout_s, policy.delete_after_s, policy.auto_resume) == (None, 604_800, True)


def test_update_takes_a_name_away(run_cloche, app: App) -> None:
    box = run_cloche("create", "--name", "box").out.strip()
    assert run_cloche("update", "box", "--name", "other", "--no-name").code == 2
    assert run_cloche("update", "box", "--no-name").code == 0
    assert app.sandboxes[box].name is None


@pytest.mark.parametrize(
    "options", [[], ["--idle-action", "stop"], ["-l", "x"], ["--idle-timeout", "never", "--idle-action", "stop"]]
)
def test_update_refuses_what_says_nothing(run_cloche, box: str, options: list[str]) -> None:
    assert run_cloche("update", box, *options).code == 2
    assert run_cloche("update", box, "--max-lifetime", "1h", "--lifetime-action", "stop").code == 0


def test_deleted_ones_are_listed_when_asked_for(run_cloche, box: str) -> None:
    other = run_cloche("create").out.strip()
    run_cloche("rm", "box")
    listed = run_cloche("ls", "--all").out
    assert box in listed
    assert other in listed
    assert box not in run_cloche("ls").out
    assert len(json.loads(run_cloche("ls", "--all", "--limit", "1", "--json").out)) == 1


def test_create_from_a_snapshot_says_so_in_ls_and_show(run_cloche, box: str) -> None:
    saved = run_cloche("snapshot", "box", "--name", "first").out.strip()
    run_cloche("create", "--name", "second", "--snapshot", saved)
    assert f"snapshot {saved}" in run_cloche("ls").out
    shown = run_cloche("show", "second").out
    assert f"snapshot {saved}" in shown
    assert "until it is deleted" in shown


def test_a_sandbox_comes_to_rest_and_wakes(run_cloche, box: str, app: App) -> None:
    assert run_cloche("pause", "box").out == f"paused {box} (0.20 s)\n"
    assert run_cloche("suspend", box).out == f"suspended {box} (0.20 s, stood still for 0.10 s)\n"
    assert "suspended" in run_cloche("show", "box").out
    assert run_cloche("resume", "box").out == f"running {box} (0.20 s)\n"
    assert json.loads(run_cloche("stop", "box", "--json").out)["state"] == "stopped"
    assert app.sandboxes[box].state is SandboxState.STOPPED
    assert run_cloche("pause", "nobody").code == 3


def test_snapshots_live_and_end(run_cloche, box: str, app: App) -> None:
    app.bodies.clear()
    options = ("--name", "one", "-l", "k=v", "--keep-last", "3", "--ttl", "7d", "--files-only")
    made = run_cloche("snapshot", "box", *options)
    assert "files, 60 MiB; stood still for 0.12 s" in made.err
    retention = {"keep_last": 3, "ttl_s": 604_800.0}
    assert app.bodies == [{"name": "one", "labels": {"k": "v"}, "memory": False, "retention": retention}]
    second = json.loads(run_cloche("snapshot", "box", "--json").out)["id"]
    assert [s["id"] for s in json.loads(run_cloche("snapshots", "ls", "box", "--json").out)] == [
        second,
        made.out.strip(),
    ]
    assert "memory and files" in run_cloche("snapshots", "ls").out
    assert "one" in run_cloche("snapshots", "show", "one").out
    first_line, second_line = run_cloche("snapshots", "tree", "box").out.splitlines()
    assert first_line.startswith(f"{made.out.strip()} one  ")
    assert second_line.startswith(f"  {second}  ")
    assert second_line.endswith("<- the sandbox came from here")
    assert run_cloche("snapshots", "rm", "nothing", "one", second).code == 3
    assert json.loads(run_cloche("snapshots", "ls", "--json").out) == []


def test_snapshots_go_out_and_in_as_files(run_cloche, box: str, tmp_path: Path) -> None:
    run_cloche("snapshot", "box", "--name", "one")
    target = tmp_path / "one.tar"
    assert run_cloche("snapshots", "export", "one", str(target)).out == ""
    assert target.read_bytes() == ARCHIVE
    assert run_cloche("snapshots", "export", "one", "-").out.encode() == ARCHIVE
    made = json.loads(run_cloche("snapshots", "import", str(target), "--name", "two", "--json").out)
    assert (made["name"], made["sandbox_id"]) == ("two", None)
    target.write_bytes(b"else")
    assert run_cloche("snapshots", "import", str(target)).code == 3


def test_restore_rolls_back(run_cloche, box: str) -> None:
    saved = run_cloche("snapshot", "box", "--name", "one").out.strip()
    assert run_cloche("restore", "box", "one").out == f"restored {box} to {saved}: running\n"
    assert run_cloche("restore", "box", "two").code == 3


def test_fork_prints_the_children(run_cloche, box: str, app: App) -> None:
    app.bodies.clear()
    done = run_cloche("fork", "box", "--name", "a", "--name", "b", "-e", "A=1")
    assert [app.sandboxes[child].name for child in done.out.split()] == ["a", "b"]
    assert "stood still for 0.15 s" in done.err
    assert app.bodies == [{"count": 2, "names": ["a", "b"], "env": {"A": "1"}}]
    assert len(run_cloche("fork", "box", "-n", "3").out.split()) == 3
    assert run_cloche("fork", "box", "-n", "3", "--name", "x").code == 2


def test_fork_tells_of_every_child_that_failed(run_cloche, box: str) -> None:
    done = run_cloche("fork", "box", "--name", "a", "--name", "fails")
    assert (done.code, len(done.out.split())) == (3, 1)
    assert "child 1: sandbox_start_failed" in done.err
    told = json.loads(run_cloche("fork", "box", "--name", "c", "--name", "fails", "--json").out)
    assert told["children"][0]["sandbox"]["name"] == "c"
    assert told["children"][1]["error"]["code"] == "sandbox_start_failed"


def test_compare_is_a_diff_with_its_exit_codes(run_cloche, box: str, app: App) -> None:
    saved = run_cloche("snapshot", "box", "--name", "one").out.strip()
    app.bodies.clear()
    done = run_cloche("compare", "one", "box", "--diff", "--root", "/tmp")
    assert done.code == 1
    assert app.bodies == [{"before": saved, "after": box, "root": "/tmp", "diffs": True}]
    assert done.out.splitlines() == [
        "+ a\\x1b[2J.txt",
        "~ b.txt",
        *("--- a/b.txt", "+++ b/b.txt", "@@ -1 +1 @@", "-old\tword", "+new \\x1b[31mword"),
        "- c.txt",
        "~ default: x = 1 (int) -> '2' (str)",
    ]
    same = run_cloche("compare", "box", "box")
    assert (same.code, same.out) == (0, "")
    assert json.loads(run_cloche("compare", "one", "box", "--json").out)["files"][2]["change"] == "removed"
    assert run_cloche("compare", "one", "nobody").code == 3


def test_a_variable_that_comes_or_goes_has_one_value() -> None:
    value = models.VariableValue(type="int", summary="1")
    gone = models.VariableDifference(context_id="default", name="x", change="removed", before=value, after=None)
    assert list(lines_of(models.Comparison(files=[], variables=[gone], truncated=False))) == ["- default: x = 1 (int)"]


def test_templates_are_built_from_a_file_and_from_options(run_cloche, app: App, tmp_path: Path) -> None:
    file, setup, code = tmp_path / "t.toml", tmp_path / "setup.sh", tmp_path / "code.py"
    file.write_text('name = "data"\nsetup = "echo"\ncontexts = [{code = "import os"}]\n[resources]\nmemory_mb = 512\n')
    done = run_cloche("templates", "build", "-f", str(file))
    assert (done.code, done.out, done.err) == (0, "data@1\n", "line 0\nline 1\nline 2\nline 3\n")
    setup.write_text("apt")
    code.write_text("import sys")
    options = ("--setup", str(setup), "--code", str(code), "--memory", "256", "-e", "A=1", "-q")
    assert run_cloche("templates", "create", "other", *options).err == ""
    assert app.bodies == [
        {
            "name": "data",
            "setup": "echo",
            "contexts": [{"code": "import os"}],
            "resources": {"memory_mb": 512},
        },
        {
            "name": "other",
            "resources": {"memory_mb": 256},
            "env": {"A": "1"},
            "setup": "apt",
            "contexts": [{"code": "import sys"}],
        },
    ]
    listed = run_cloche("templates", "ls").out
    assert "data@1" in listed
    assert "1.0 s" in listed
    assert "snap-template0000" in run_cloche("templates", "show", "data").out
    assert run_cloche("templates", "log", "data").out.startswith("line 0\n")
    followed = run_cloche("templates", "log", "-f", "data")
    assert (followed.code, followed.out.startswith("line 0\n")) == (0, True)
    assert json.loads(run_cloche("templates", "log", "-f", "--json", "data").out.splitlines()[-1])["type"] == "finished"
    assert run_cloche("templates", "rm", "data@1", "nothing").code == 3
    assert [t["name"] for t in json.loads(run_cloche("templates", "ls", "--json").out)] == ["other"]


@pytest.mark.parametrize(
    ("text", "code"),
    [("name = ", 2), ('nam = "x"', 2), ('name = "x"\nsetups = ""', 2), ('name = "x"\nsetup="fail"', 3)],
)
def test_a_template_that_cannot_be_built_says_why(run_cloche, tmp_path: Path, text: str, code: int) -> None:
    file = tmp_path / "t.toml"
    file.write_text(text)
    done = run_cloche("templates", "build", "-f", str(file))
    assert (done.code, done.out) == (code, "")
    assert done.err
    if code == 3:
        followed = run_cloche("templates", "log", "-f", "x")
        assert (followed.code, followed.err) == (
            3,
            "cloche: the build failed: setup: the set-up script exited with 3\n",
        )


def test_pools_are_set_shown_and_deleted(run_cloche, app: App) -> None:
    assert run_cloche("pools", "set", "p", "--template", "data", "--min", "2", "--max-age", "1h").code == 0
    assert app.bodies == [{"template": "data", "min": 2, "max_age_s": 3600.0}]
    assert "template data" in run_cloche("pools", "ls").out
    assert "2 to 10, 2 wanted now" in run_cloche("pools", "show", "p").out
    assert json.loads(run_cloche("pools", "ls", "--json").out)[0]["stats"]["claims"] == 3
    assert run_cloche("pools", "set", "p", "--template", "data", "--image", "python").code == 2
    options = ("--driver", "runc", "--memory", "512", "--cpus", "1", "--no-sudo", "--shared")
    assert run_cloche("pools", "set", "p", *options).code == 0
    sent = {"driver": "runc", "resources": {"memory_mb": 512, "cpus": 1.0}, "sudo": False, "shared": True}
    assert app.bodies[-1] == sent
    shown = run_cloche("pools", "show", "p").out
    assert "1 CPUs, 512 MiB memory" in shown
    assert "every owner" in shown
    assert run_cloche("pools", "rm", "p").out == "deleted p\n"
    assert run_cloche("pools", "show", "p").code == 3


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("1.5m", 90), ("30s", 30), ("2h", 7200), ("7d", 604_800)])
def test_durations_have_units(text: str, seconds: float) -> None:
    assert Duration().convert(text, None, None) == seconds


def test_what_will_happen_is_told_soonest_first(run_cloche, box: str, app: App) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    lifetime = models.Lifetime(idle_at=now + timedelta(hours=3), ends_at=now + timedelta(seconds=90))
    origin = models.Origin(kind="template", id="data@1", warm=True)
    sandbox = app.sandboxes[box].model_copy(update={"lifetime": lifetime, "origin": origin})
    assert endings_of(sandbox, now) == ["delete in 1m", "suspend in 3h00m"]
    assert endings_of(app.sandboxes[box], now) == []
    assert (origin_of(sandbox), origin_of(app.sandboxes[box])) == ("template data@1, warm", "image")


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ({}, "x"),
        ({"code": 1, "name": "web", "failure": None}, "x  code=1 name=web"),
        ({"why": "two words\n", "bad": "\x1b[2J"}, 'x  why="two words\\n" bad="\\u001b[2J"'),
    ],
)
def test_an_event_is_a_line(data: dict[str, object], line: str) -> None:
    assert line_of_event(models.Event.model_validate({"type": "x", "cursor": "a.1.1", "data": data})) == line
