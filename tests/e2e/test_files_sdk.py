"""Files and watches with the SDK and the command line. One sandbox for all."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import cloche
from cloche import AsyncClient, AsyncSandbox, Client, Sandbox
from cloche.models import CloneProgress

from .server_process import ServerProcess

MAKE_TWICE = """
import os, shutil, time
def make(count=20_000):
    began = time.process_time()
    for number in range(count):
        if number % 100 == 0:
            os.makedirs(f'many/{number}')
        os.close(os.open(f'many/{number // 100 * 100}/{number}', os.O_CREAT))
    return time.process_time() - began
first = make()
shutil.rmtree('many')
print(first, make())
shutil.rmtree('many')
"""


@pytest.fixture(scope="module")
def sandbox(server: ServerProcess) -> Iterator[Sandbox]:
    with Client(server.url, server.key) as client, Sandbox.create(client=client, driver="runc") as made:
        yield made


def test_content(sandbox: Sandbox) -> None:
    files = sandbox.files
    info = files.write("dir/a.txt", "hällo", parents=True, mode="640")
    assert (info.size, info.mode, info.path) == (6, "0640", "/workspace/dir/a.txt")
    assert files.read("dir/a.txt") == "hällo".encode()
    assert files.read("dir/a.txt", start=1, length=2).decode() == "ä"
    assert files.read_text("dir/a.txt") == "hällo"
    assert files.append("dir/a.txt", "!").size == 7
    with pytest.raises(cloche.PreconditionFailed) as failed:
        files.write("dir/a.txt", b"", if_match=info.etag)
    assert failed.value.details["etag"] == files.stat("dir/a.txt").etag
    with pytest.raises(cloche.PreconditionFailed):
        files.write("dir/a.txt", b"", if_none_match="*")
    assert files.write("dir/b", io.BytesIO(b"from a file object")).size == 18
    assert [entry.name for entry in files.list("dir")] == ["a.txt", "b"]
    assert files.glob("*.txt", "dir") == ["a.txt"]
    assert files.search("hällo").matches[0].path == "dir/a.txt"
    assert files.copy("dir", "copy", recursive=True).type == "directory"
    assert files.move("copy", "moved").name == "moved"
    assert files.chmod("moved/b", "700").mode == "0700"
    assert files.mkdir("moved/x/y", parents=True).mode == "0755"
    assert files.remove("moved", recursive=True) == 5
    assert sandbox.run("print(open('dir/b').read())").stdout == "from a file object\n"


def test_errors(sandbox: Sandbox) -> None:
    cases = {
        cloche.NotFound: lambda: sandbox.files.read("none"),
        cloche.PermissionDenied: lambda: sandbox.files.read("/etc/shadow"),
        cloche.IsDirectory: lambda: sandbox.files.read("/etc"),
        cloche.AlreadyExists: lambda: sandbox.files.mkdir("/workspace"),
        cloche.GitFailed: lambda: sandbox.files.clone("file:///nowhere", "x"),
    }
    for error, call in cases.items():
        with pytest.raises(error):
            call()


@pytest.fixture(scope="module")
def repository(sandbox: Sandbox) -> str:
    """One with enough objects for git to count."""
    made = sandbox.exec(
        "git init -q -b main repo && cd repo && git config user.email a@b && git config user.name n && mkdir d"
        " && for i in $(seq 300); do echo $i > d/$i; done && git add . && git commit -qm 1 && pwd"
    )
    return made.stdout.strip()


def test_a_clone_tells_of_its_progress(sandbox: Sandbox, repository: str) -> None:
    seen: list[CloneProgress] = []
    done = sandbox.files.clone(f"file://{repository}", "cloned", on_progress=seen.append)
    assert done == sandbox.files.clone(f"file://{repository}", "again").model_copy(update={"path": done.path})
    last = {step.phase: step for step in seen}["Receiving objects"]
    assert (last.percent, last.done) == (100, last.total)
    assert last.total > 300
    with pytest.raises(cloche.GitFailed) as failed:
        sandbox.files.clone("file:///nowhere", "x", on_progress=seen.append)
    assert failed.value.details["reason"] == "not_found"
    with pytest.raises(cloche.InvalidRequest):
        sandbox.files.clone("", "x", on_progress=seen.append)


def test_names_of_any_byte(sandbox: Sandbox) -> None:
    for name in (b"odd/caf\xe9", b"odd/a\nb|c", "odd/ü".encode()):
        sandbox.files.write(name, b"x", parents=True)
        assert sandbox.files.read(os.fsdecode(name)) == b"x"
    names = [os.fsencode(entry.name) for entry in sandbox.files.list("odd")]
    assert names == [b"a\nb|c", b"caf\xe9", "ü".encode()]


def test_files_and_trees_of_this_machine(sandbox: Sandbox, tmp_path: Path) -> None:
    data = os.urandom(3_000_000)
    (tmp_path / "big").write_bytes(data)
    assert sandbox.files.upload(tmp_path / "big", "up/big", parents=True).size == len(data)
    assert sandbox.files.download("up/big", tmp_path / "back") == len(data)
    assert (tmp_path / "back").read_bytes() == data
    buffer = io.BytesIO()
    sandbox.files.download("up/big", buffer)
    assert buffer.getvalue() == data
    with pytest.raises(cloche.NotFound):
        sandbox.files.download("up/none", tmp_path / "none")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["back", "big"]
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/sub/f").write_text("x")
    (tmp_path / "tree/l").symlink_to("sub/f")
    stored = sandbox.files.upload_tree(tmp_path / "tree", "tree")
    assert (stored.files, stored.links) == (1, 1)
    sandbox.run("import os; os.symlink('/etc', 'tree/out'); os.symlink('../../x', 'tree/sub/up')")
    got = sandbox.files.download_tree("tree", tmp_path / "got")
    assert (got.files, got.links) == (1, 1)
    assert sorted(got.skipped) == ["out", "sub/up"], "a sandbox' links do not lead out of what was downloaded"
    assert (tmp_path / "got/l").read_text() == "x"


def test_a_watch(sandbox: Sandbox) -> None:
    """e2b-dev/E2B#676: one of the clients could not watch recursively."""
    sandbox.files.mkdir("w")
    with sandbox.files.watch("w", coalesce_ms=0) as watch:
        start = watch.info.cursor
        assert watch.changes_since(start).status == "unchanged"
        sandbox.files.write("w/a", b"1")
        sandbox.files.move("w/a", b"w/caf\xe9")
        sandbox.files.write("w/deep/down/b", b"2", parents=True)
        seen = []
        for change in watch:
            seen.append((change.kind, change.path, change.destination))
            if change.path == "deep/down/b":
                break
        assert seen[0][:2] == ("create", "a")
        assert ("move", "a", os.fsdecode(b"caf\xe9")) in seen
        assert watch.changes_since(start).status == "changed"


async def test_the_same_awaited(server: ServerProcess, sandbox: Sandbox, repository: str, tmp_path: Path) -> None:
    """e2b-dev/E2B#676: one of the clients could not watch recursively."""
    async with AsyncClient(server.url, server.key) as client:
        same = await AsyncSandbox.connect(sandbox.id, client=client)
        (tmp_path / "f").write_bytes(b"x" * 1_000_000)
        assert (await same.files.upload(tmp_path / "f", "async")).size == 1_000_000
        assert await same.files.download("async", tmp_path / "g") == 1_000_000
        assert (await same.files.write("t", "text")).size == 4
        seen: list[str] = []

        async def on_progress(step: CloneProgress) -> None:
            seen.append(step.phase)

        cloned = await same.files.clone(f"file://{repository}", "async-clone", on_progress=on_progress)
        assert (cloned.branch, "Receiving objects" in seen) == ("main", True)
        await same.files.mkdir("aw")
        async with await same.files.watch("aw") as watch:
            await same.files.write("aw/deep/b", b"", parents=True)
            paths = []
            async for change in watch:
                paths.append((change.kind, change.path))
                if change.path == "deep/b":
                    break
            assert paths == [("create", "deep"), ("create", "deep/b")]


def cli(server: ServerProcess, *arguments: str, **options: object) -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "CLOCHE_URL": server.url, "CLOCHE_API_KEY": server.key}
    program = str(Path(sys.executable).with_name("cloche"))
    return subprocess.run([program, *arguments], env=env, capture_output=True, check=False, **options)  # type: ignore[call-overload, no-any-return]


def test_clone_on_the_command_line(server: ServerProcess, sandbox: Sandbox, repository: str) -> None:
    done = cli(server, "files", "clone", f"file://{repository}", f"{sandbox.id}:by-cli", "--depth", "1")
    assert (done.returncode, done.stdout.split()[:2]) == (0, [b"/workspace/by-cli", b"main"])
    assert b"Receiving objects: 100 %" in done.stderr
    failed = cli(server, "files", "clone", f"file://{repository}", f"{sandbox.id}:by-cli")
    assert (failed.returncode, b"already" in failed.stderr) == (3, True)


def test_the_command_line(server: ServerProcess, sandbox: Sandbox, tmp_path: Path) -> None:
    box = sandbox.id
    (tmp_path / "d").mkdir()
    (tmp_path / "d/f").write_text("one\n")
    assert cli(server, "cp", str(tmp_path / "d/f"), f"{box}:c/f").returncode == 0
    assert cli(server, "cp", "-r", str(tmp_path / "d"), f"{box}:c/d").returncode == 0
    assert cli(server, "cp", f"{box}:c/f", str(tmp_path / "d")).returncode == 0, "into a directory"
    assert cli(server, "cp", "-r", f"{box}:c", str(tmp_path / "back")).returncode == 0
    assert (tmp_path / "back/d/f").read_text() == "one\n"
    assert cli(server, "files", "cat", f"{box}:c/f").stdout == b"one\n"
    assert b"f" in cli(server, "files", "ls", f"{box}:c").stdout
    refused = cli(server, "files", "rm", f"{box}:c")
    assert (refused.returncode, b"not_empty" in refused.stderr) == (3, True)
    assert cli(server, "files", "rm", "-r", f"{box}:c").returncode == 0
    assert cli(server, "cp", f"{box}:none", str(tmp_path / "x")).returncode == 3
    assert cli(server, "cp", "a", "b").returncode == 2
    sandbox.files.mkdir("cw")
    env = {**os.environ, "CLOCHE_URL": server.url, "CLOCHE_API_KEY": server.key}
    program = str(Path(sys.executable).with_name("cloche"))
    with subprocess.Popen(
        [program, "watch", f"{box}:cw"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        try:
            assert b"watching" in process.stderr.readline()
            sandbox.files.write(b"cw/new\n\x1b[2J", b"")
            line = process.stdout.readline()
        finally:
            process.terminate()
        assert line.startswith(b"create  new")
        assert b"\x1b" not in line


def test_new_files_are_quick_after_many_were_removed(sandbox: Sandbox) -> None:
    """ext4 without a journal passed over every inode freed in the last minute, for each new file: 7 times the work here."""
    first, again = map(float, sandbox.run(MAKE_TWICE, timeout_s=100).stdout.split())
    assert again < 3 * first
