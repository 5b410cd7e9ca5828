"""The commands, through the same entry as the script."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from protocol_app import KEY, App, Fault

from cloche.cli._app import ENTRIES
from cloche.cli._files import CloneScreen
from cloche.errors import LimitReached
from cloche.models import CloneProgress, SandboxState


@pytest.fixture
def box(run_cloche) -> str:
    return run_cloche("create", "--name", "box").out.strip()


def test_create_prints_the_id_for_programs_and_the_rest_for_people(run_cloche, app: App) -> None:
    done = run_cloche("create", "--name", "a", "-l", "k=v", "-e", "A=b=c", "--memory", "256", "--no-sudo")
    assert done.code == 0
    assert done.out.strip() in app.sandboxes
    assert "python on gvisor" in done.err
    assert app.bodies == [
        {"name": "a", "labels": {"k": "v"}, "env": {"A": "b=c"}, "resources": {"memory_mb": 256}, "sudo": False}
    ]


def test_ls_lists_what_is_there(run_cloche, box: str) -> None:
    gone = run_cloche("create", "-l", "k=v").out.strip()
    run_cloche("rm", gone)
    listed = run_cloche("ls").out
    assert box in listed
    assert gone not in listed
    assert gone in run_cloche("ls", "--all").out
    assert [entry["name"] for entry in json.loads(run_cloche("ls", "--json").out)] == ["box"]
    assert run_cloche("ls", "--state", "deleted", "--label", "k=v", "--json").out.count(gone) == 1


def test_show_tells_everything(run_cloche, box: str) -> None:
    run_cloche("contexts", "create", "box", "--name", "second")
    shown = run_cloche("show", "box").out
    assert box in shown
    assert "2048 MiB memory" in shown
    assert "second" in shown
    told = json.loads(run_cloche("show", box, "--json").out)
    assert (told["sandbox"]["id"], told["contexts"][0]["name"]) == (box, "second")


def test_rm_deletes_by_name_and_id(run_cloche, box: str, app: App) -> None:
    other = run_cloche("create").out.strip()
    assert run_cloche("rm", "box", other).code == 0
    assert {found.state for found in app.sandboxes.values()} == {SandboxState.DELETED}


def test_rm_goes_on_after_an_unknown_one(run_cloche, box: str) -> None:
    done = run_cloche("rm", "nobody", "box")
    assert (done.code, done.out) == (3, f"deleted {box}\n")
    assert "nobody" in done.err


def test_contexts_live_and_end(run_cloche, box: str) -> None:
    made = run_cloche("contexts", "create", "box", "--name", "second", "--cwd", "/tmp", "-e", "A=1").out.strip()
    assert json.loads(run_cloche("contexts", "ls", "box", "--json").out)[0]["cwd"] == "/tmp"
    assert "second" in run_cloche("contexts", "ls", "box").out
    assert run_cloche("contexts", "restart", "box", "second").out == f"restarted {made}: generation 2\n"
    assert run_cloche("contexts", "interrupt", "box", made).out == f"interrupted {made}\n"
    assert run_cloche("contexts", "rm", "box", "second").out == f"deleted {made}\n"
    assert run_cloche("contexts", "rm", "box", "second").code == 3


def test_keys_live_and_end(run_cloche) -> None:
    made = run_cloche("keys", "create", "bob", "--role", "viewer")
    assert made.out == "clk-secret\n"
    key_id = made.err.split(":")[0]
    assert "bob" in run_cloche("keys", "ls").out
    assert json.loads(run_cloche("keys", "ls", "--json").out)[0]["id"] == key_id
    assert run_cloche("keys", "revoke", key_id).code == 0
    assert json.loads(run_cloche("keys", "create", "eve", "--json").out)["secret"] == "clk-secret"


def test_info_names_the_drivers(run_cloche) -> None:
    assert "gvisor" in run_cloche("info").out
    assert json.loads(run_cloche("info", "--json").out)["role"] == "admin"


def test_run_prints_what_the_code_prints(run_cloche, app: App) -> None:
    done = run_cloche("run", "-c", "print a\nwarn b\nvalue c")
    assert (done.code, done.out, done.err) == (0, "a\nc\n", "b\n")
    assert next(iter(app.sandboxes.values())).state is SandboxState.DELETED


def test_run_reads_a_file_and_standard_input(run_cloche, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "script.py"
    script.write_text("print from file")
    assert run_cloche("run", str(script)).out == "from file\n"
    monkeypatch.setattr("sys.stdin", io.StringIO("print from stdin"))
    assert run_cloche("run", "-").out == "from stdin\n"


def test_run_says_when_the_code_raised(run_cloche) -> None:
    done = run_cloche("run", "-c", "raise ValueError oops")
    assert (done.code, done.err) == (1, "ValueError: oops\n")


def test_run_in_a_sandbox_keeps_it(run_cloche, box: str, app: App) -> None:
    second = run_cloche("contexts", "create", "box", "--name", "second").out.strip()
    assert run_cloche("run", "-s", "box", "--context", "second", "-c", "1+1").out == "2\n"
    assert app.sandboxes[box].state is SandboxState.RUNNING
    assert [key[1] for key in app.runs] == [second]
    assert run_cloche("run", "-s", "box", "--context", "third", "-c", "1+1").code == 3


def test_run_keeps_a_new_sandbox_when_asked(run_cloche, app: App) -> None:
    done = run_cloche("run", "--keep", "-c", "1+1")
    (made,) = app.sandboxes.values()
    assert f"kept sandbox {made.id}" in done.err
    assert made.state is SandboxState.RUNNING


def test_run_writes_images_and_names_them(run_cloche, tmp_path: Path) -> None:
    done = run_cloche("run", "-c", "image\nimage", "--out", str(tmp_path / "plots"))
    assert done.err == "".join(f"wrote {tmp_path}/plots/image-{n}.png\n" for n in (1, 2))
    assert (tmp_path / "plots" / "image-2.png").read_bytes().startswith(b"\x89PNG")
    assert "2 images; --out DIR" in run_cloche("run", "-c", "image\nimage").err


def test_run_for_programs_is_one_json(run_cloche, tmp_path: Path) -> None:
    done = run_cloche("run", "--json", "-c", "print a\nimage\nraise E x", "--out", str(tmp_path))
    told = json.loads(done.out)
    assert done.code == 1
    assert told["run"]["error"]["name"] == "E"
    assert told["images"] == [f"{tmp_path}/image-1.png"]


def test_run_passes_limits_on(run_cloche, app: App) -> None:
    run_cloche("run", "-c", "1+1", "--timeout", "5", "-e", "A=1")
    (played,) = app.runs.values()
    assert (played.body.timeout_s, played.body.env, played.body.allow_stdin) == (5, {"A": "1"}, False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "x.py", "-c", "1"),
        ("run", "/does/not/exist"),
        ("run", "-c", "1", "-s", "a", "--keep"),
        ("run", "-c", "1", "--timeout", "-1"),
        ("create", "--env", "novalue"),
        ("create", "--name", "no spaces"),
        ("show", "../keys"),
        ("nothing",),
        ("ls", "--limit", "0"),
    ],
)
def test_wrong_usage_is_exit_code_2(run_cloche, arguments: tuple[str, ...]) -> None:
    done = run_cloche(*arguments)
    assert done.code == 2
    assert "Traceback" not in done.err


def test_an_error_of_the_service_is_one_line_and_exit_code_3(run_cloche, app: App) -> None:
    app.faults.append(Fault("error", "POST", "/sandboxes", answer=LimitReached("full\x1b[2J", hint="delete some")))
    done = run_cloche("create")
    assert done.code == 3
    assert done.err == "cloche: limit_reached: full\\x1b[2J (delete some) [request req-1]\n"


def test_a_wrong_key_is_one_line(run_cloche, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLOCHE_API_KEY", "wrong")
    done = run_cloche("ls")
    assert (done.code, done.err.count("\n")) == (3, 1)
    assert "unauthenticated" in done.err
    assert "admin.key" not in done.err, "it came from no file"


def test_a_key_of_another_servers_file_names_the_file(
    run_cloche, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("CLOCHE_API_KEY")
    monkeypatch.setenv("CLOCHE_DATA_DIR", str(tmp_path))
    (tmp_path / "admin.key").write_text(KEY)
    assert run_cloche("ls").code == 0
    (tmp_path / "admin.key").write_text("clk_of_another_server")
    done = run_cloche("ls")
    assert done.code == 3
    assert f"the key is from {tmp_path}/admin.key" in done.err
    assert "CLOCHE_DATA_DIR" in done.err


def test_no_server_is_one_line(run_cloche) -> None:
    done = run_cloche("--url", "http://127.0.0.1:9", "ls")
    assert (done.code, done.err.count("\n")) == (3, 1)
    assert "cloche serve" in done.err


def test_names_in_tables_cannot_control_the_terminal(run_cloche, app: App, box: str) -> None:
    app.sandboxes[box] = app.sandboxes[box].model_copy(update={"labels": {"k": "\x1b]0;evil\x07[bold]"}})
    listed = run_cloche("ls").out
    assert "\x1b" not in listed
    assert r"k=\x1b]0;evil\x07[bold]" in listed


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(run_cloche, shell: str) -> None:
    assert "_CLOCHE_COMPLETE" in run_cloche("completion", shell).out


@pytest.mark.parametrize("command", sorted(name for name, entry in ENTRIES.items() if entry.extra is None))
def test_every_command_explains_itself(run_cloche, command: str) -> None:
    assert "Usage" in run_cloche(command, "--help").out


@pytest.mark.parametrize("command", sorted(name for name, entry in ENTRIES.items() if entry.extra == "server"))
def test_without_the_server_part_its_commands_say_what_to_install(
    run_cloche, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in [name for name in sys.modules if name.startswith("cloche_server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cloche_server", None)
    done = run_cloche(command)
    assert done.code == 3
    assert "pip install 'cloche[server]'" in done.err


def test_a_package_that_serve_imports_late_is_told_of_too(run_cloche, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's installation has the server's code, and not what it needs: that was a traceback."""
    for name in [name for name in sys.modules if name.startswith(("cloche_server", "tornado"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tornado", None)
    done = run_cloche("serve")
    assert done.code == 3
    assert "'tornado" in done.err
    assert "pip install 'cloche[server]'" in done.err


def test_progress_that_nobody_watches_is_a_line_for_each_phase() -> None:
    written = io.StringIO()
    with CloneScreen(written) as screen:
        for done in (1, 2, 2):  # git says the end twice
            screen.show(CloneProgress(phase="Receiving objects", percent=50 * done, done=done, total=2))
    assert written.getvalue() == "Receiving objects: 100 % (2/2)\n"
