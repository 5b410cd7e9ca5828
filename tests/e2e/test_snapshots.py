"""Snapshots of real sandboxes: saved, rolled back, started from, carried away; and what a crash in the middle leaves."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import subprocess
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from cloche_server.snapshots._digest import digest_of_file

from . import inside
from .server_process import ServerProcess

ROUNDS = 50 if inside.FULL else 3
"""The second is where writes were lost."""

CRASHES = int(os.environ.get("CLOCHE_TEST_CRASHES") or (200 if inside.FULL else 3))

CLAIMED = "import os; print(os.environ['CLAIMED'])"

AT_REST = {"running", "paused", "suspended", "stopped", "failed"}
"""States in which a sandbox may stay."""


def create(client: httpx.Client, **body: Any) -> str:
    answer = client.post("/v1/sandboxes", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def restore(client: httpx.Client, sandbox_id: str, snapshot: str) -> dict[str, Any]:
    answer = client.post(f"/v1/sandboxes/{sandbox_id}/restore", json={"snapshot": snapshot})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


@pytest.fixture
def cleared(client: httpx.Client) -> Iterator[None]:
    """No snapshot is left behind."""
    yield
    for item in client.get("/v1/snapshots?limit=200").json()["items"]:
        client.delete(f"/v1/snapshots/{item['id']}")


# Rolling back


def test_the_state_is_exact_after_every_restore_with_writes_between(
    client: httpx.Client, make_sandbox: Callable[..., str], cleared: None
) -> None:
    """e2b-dev/E2B#884: writes were lost after the second resume."""
    sandbox_id = make_sandbox(driver="gvisor", name="rolled")
    inside.run(client, sandbox_id, "values = []")
    epochs = set()
    for n in range(ROUNDS):
        inside.run(client, sandbox_id, f'values.append({n}); open("/workspace/log", "a").write("{n}\\n")')
        inside.write(client, sandbox_id, f"/workspace/file{n}", "x" * n)
        made = inside.snapshot(client, sandbox_id)
        inside.run(client, sandbox_id, 'values.append("lost"); open("/workspace/log", "a").write("lost\\n")')
        inside.write(client, sandbox_id, f"/workspace/file{n}", "lost")
        inside.write(client, sandbox_id, f"/workspace/lost{n}", "lost")
        row = restore(client, sandbox_id, made["id"])
        epochs.add(row["epoch"])
        assert (row["id"], row["name"], row["parent"]) == (sandbox_id, "rolled", made["id"])
        assert inside.run(client, sandbox_id, "print(values)") == str(list(range(n + 1)))
        assert inside.read(client, sandbox_id, "/workspace/log") == "".join(f"{i}\n" for i in range(n + 1))
        names = inside.run(client, sandbox_id, 'import os; print(*sorted(os.listdir("/workspace")))').split()
        assert names == sorted(["log", *(f"file{i}" for i in range(n + 1))])
        assert inside.read(client, sandbox_id, f"/workspace/file{n}") == "x" * n
    assert len(epochs) == ROUNDS
    tree = client.get(f"/v1/sandboxes/{sandbox_id}/snapshots/tree").json()["nodes"]
    assert [node["depth"] for node in tree] == list(range(ROUNDS))


def test_files_are_rolled_back_on_both_drivers(
    client: httpx.Client, make_sandbox: Callable[..., str], driver: str, cleared: None
) -> None:
    """cloudflare/sandbox-sdk#642: what had been restored was empty when the session had gone."""
    sandbox_id = make_sandbox(driver=driver)
    inside.write(client, sandbox_id, "/workspace/a", "one")
    made = inside.snapshot(client, sandbox_id, memory=False)
    inside.run(client, sandbox_id, 'x = 1; open("/workspace/a", "w").write("two")')
    restore(client, sandbox_id, made["id"])
    assert inside.read(client, sandbox_id, "/workspace/a") == "one"
    assert inside.run(client, sandbox_id, "print('x' in globals())") == "False"
    child = create(client, snapshot=made["id"], env={"NEW": "1"})
    assert inside.read(client, child, "/workspace/a") == "one"
    assert inside.run(client, child, 'import os; print(os.environ["NEW"])') == "1"
    client.delete(f"/v1/sandboxes/{child}")


def test_an_archive_is_a_sandbox_with_its_memory(
    client: httpx.Client, make_sandbox: Callable[..., str], driver: str, cleared: None
) -> None:
    """cloudflare/sandbox-sdk#432: there was no way to keep a backup of one's own."""
    sandbox_id = make_sandbox(driver=driver)
    inside.run(client, sandbox_id, 'x = 41; open("/workspace/a", "w").write("one")')
    made = inside.snapshot(client, sandbox_id, name="carried")
    with client.stream("GET", "/v1/snapshots/carried/export") as answer, tempfile.TemporaryFile() as file:
        assert answer.status_code == 200
        for part in answer.iter_bytes():
            file.write(part)
        assert file.tell() < made["size_bytes"] + 4 * 2**20, "holes are not carried"
        file.seek(0)
        back = client.post("/v1/snapshots/import?name=back", content=file)
    assert back.status_code == 201, back.text
    assert back.json()["digest"] == made["digest"]
    child = create(client, snapshot="back")
    known = "print(x)" if driver == "gvisor" else "print(41)"
    assert inside.run(client, child, known) == "41"
    assert inside.read(client, child, "/workspace/a") == "one"
    client.delete(f"/v1/sandboxes/{child}")


def test_memory_of_another_runtime_is_refused_with_both_versions(
    client: httpx.Client, make_sandbox: Callable[..., str], cleared: None
) -> None:
    """As an archive from a server with another runsc would be: it is taken in, and cannot be started here."""
    made = inside.snapshot(client, make_sandbox(driver="gvisor"))
    exported = client.get(f"/v1/snapshots/{made['id']}/export")
    assert exported.status_code == 200, exported.text
    archive = exported.content
    for version, status in ((None, 201), ("0.0~20990101", 409)):
        back = client.post("/v1/snapshots/import", content=as_saved_by(version, archive))
        assert back.status_code == 201, back.text
        answer = client.post("/v1/sandboxes", json={"snapshot": back.json()["id"]})
        assert answer.status_code == status, answer.text
        if status == 201:
            client.delete(f"/v1/sandboxes/{answer.json()['id']}")
    error = answer.json()
    assert (error["code"], error["details"]["reason"]) == ("unsupported_capability", "other_runtime")
    assert "0.0~20990101" in error["message"]


def as_saved_by(version: str | None, archive: bytes) -> bytes:
    """The archive with another version of the runtime in its record, all else consistent."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        members = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    manifest, record = json.loads(members["manifest.json"]), json.loads(members["checkpoint.json"])
    members["checkpoint.json"] = content = json.dumps(record | ({"runtime": version} if version else {})).encode()
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        entry = next(each for each in manifest["files"] if each["name"] == "checkpoint.json")
        entry |= {"size": len(content), "digest": digest_of_file(Path(file.name)), "extents": [[0, len(content)]]}
    members["manifest.json"] = json.dumps(manifest).encode()
    changed = io.BytesIO()
    with tarfile.open(fileobj=changed, mode="w") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return changed.getvalue()


def test_two_forks_and_a_snapshot_are_compared(
    client: httpx.Client, make_sandbox: Callable[..., str], cleared: None
) -> None:
    sandbox_id = make_sandbox(driver="gvisor")
    inside.run(client, sandbox_id, "same = [1, 2]; x = 1; gone = 0")
    for name in ("same", "changed", "removed"):
        inside.write(client, sandbox_id, f"/workspace/{name}", f"{name}\n")
    made = inside.snapshot(client, sandbox_id)
    [child] = inside.fork(client, sandbox_id)
    inside.run(client, child, "x = 2; del gone; new = 'value'")
    inside.run(client, child, 'import os; os.remove("/workspace/removed"); os.symlink("same", "/workspace/link")')
    inside.write(client, child, "/workspace/changed", "otherwise\n")
    for before in (sandbox_id, made["id"]):
        answer = client.post("/v1/compare", json={"before": before, "after": child, "diffs": True})
        assert answer.status_code == 200, answer.text
        found = answer.json()
        files = {file["path"]: file for file in found["files"]}
        assert {path: file["change"] for path, file in files.items()} == {
            "changed": "changed",
            "removed": "removed",
            "link": "added",
        }
        assert files["link"]["after"] == "-> same"
        assert files["changed"]["diff"] == "--- a/changed\n+++ b/changed\n@@ -1 +1 @@\n-changed\n+otherwise\n"
        variables = {one["name"]: one["change"] for one in found["variables"]}
        assert variables == {"x": "changed", "gone": "removed", "new": "added", "os": "added"}
    same = client.post("/v1/compare", json={"before": made["id"], "after": sandbox_id}).json()
    assert same == {"files": [], "variables": [], "truncated": False}
    client.delete(f"/v1/sandboxes/{child}")


# A full disk


def mount_small(directory: Path, size: str, *options: str) -> None:
    command = ["mount", "-t", "tmpfs", "-o", ",".join((*options, f"size={size}")), "none", str(directory)]
    subprocess.run(command, check=True)


@pytest.fixture
def small_server(image: str) -> Iterator[ServerProcess]:
    """Its snapshots lie on a file system of 32 MiB; a saved kernel, or the file below, has more."""
    assert image
    made = ServerProcess(Path(tempfile.mkdtemp(prefix="cl", dir="/tmp")))
    made.prepare()
    snapshots = made.data_dir / "snapshots"
    snapshots.mkdir()
    mount_small(snapshots, "32m")
    made.start()
    yield made
    made.remove_all()
    subprocess.run(["umount", str(snapshots)], check=True)
    shutil.rmtree(made.directory)


def test_a_full_disk_harms_nothing(small_server: ServerProcess, driver: str) -> None:
    snapshots = small_server.data_dir / "snapshots"
    with small_server.client() as client:
        sandbox_id = create(client, driver=driver)
        inside.run(client, sandbox_id, 'import os; x = 41; open("/workspace/big", "wb").write(os.urandom(48 << 20))')
        for path, body in (("snapshots", {"name": "n"}), ("fork", {"memory": driver == "gvisor", "count": 2})):
            answer = client.post(f"/v1/sandboxes/{sandbox_id}/{path}", json=body)
            assert (answer.status_code, answer.json()["code"]) == (507, "storage_full"), answer.text
            assert list(snapshots.iterdir()) == []
        assert client.get("/v1/snapshots").json()["items"] == []
        assert client.get(f"/v1/sandboxes/{sandbox_id}").json()["state"] == "running"
        assert inside.run(client, sandbox_id, "print(x)") == "41"
        mount_small(snapshots, "512m", "remount")  # the same with room
        assert inside.snapshot(client, sandbox_id, name="n")["state"] == "ready"


# Crashes


class Crashes:
    """One sandbox whose ``x`` is known, and operations in whose middle something is killed.

    What was acknowledged is in ``x``, in ``snapshots`` (id -> the ``x`` in it) and in ``others`` (id -> code, and what it
    prints).
    """

    def __init__(self, server: ServerProcess, seed: int) -> None:
        self.server = server
        self.random = random.Random(seed)
        self.snapshots: dict[str, int] = {}
        self.others: dict[str, tuple[str, str]] = {}
        self.x = 0
        self.sandbox_id = ""
        self.outcomes: Counter[str] = Counter()

    def fresh(self, client: httpx.Client) -> None:
        self.sandbox_id = create(client, driver="gvisor", warm=False)
        self.write(client, self.x)

    def write(self, client: httpx.Client, x: int) -> None:
        """Acknowledged when this returns."""
        code = f'x = {x}; open("/workspace/x", "w").write("{x}"); print(x)'
        assert inside.run(client, self.sandbox_id, code) == str(x)
        self.x = x

    def round(self) -> None:
        operations = [self.save, self.restore, self.fork, self.suspend, self.claim]
        operation = self.random.choice(operations if self.snapshots else [self.save])
        with self.server.client() as client:
            self.write(client, self.x + 1)
        expected = {self.x}
        done = threading.Thread(target=self.attempt, args=(operation, expected))
        done.start()
        time.sleep(self.random.uniform(0, 1.2) ** 2)  # where the kill hits is the point of this test
        victim = self.random.choice(["server", "server", "runtime"])
        if victim == "server":
            self.server.kill()
            done.join()
            self.server.start()
        else:
            self.kill_runtime()
            done.join()
        with self.server.client() as client:
            self.judge(client, expected, f"{operation.__name__} {victim}", runtime=victim == "runtime")

    def attempt(self, operation: Callable[[httpx.Client, set[int]], None], expected: set[int]) -> None:
        """Any answer may be missing; what is acknowledged counts."""
        with suppress(httpx.HTTPError), self.server.client() as client:
            operation(client, expected)

    def save(self, client: httpx.Client, _: set[int]) -> None:
        answer = client.post(f"/v1/sandboxes/{self.sandbox_id}/snapshots", json={})
        if answer.status_code == 201:
            self.snapshots[answer.json()["id"]] = self.x

    def restore(self, client: httpx.Client, expected: set[int]) -> None:
        snapshot, x = self.random.choice(sorted(self.snapshots.items()))
        expected.add(x)
        answer = client.post(f"/v1/sandboxes/{self.sandbox_id}/restore", json={"snapshot": snapshot})
        if answer.status_code == 200:
            expected.clear()
            expected.add(x)

    def fork(self, client: httpx.Client, _: set[int]) -> None:
        answer = client.post(f"/v1/sandboxes/{self.sandbox_id}/fork", json={"count": 2})
        if answer.status_code == 201:
            children = [child["sandbox"]["id"] for child in answer.json()["children"] if child["sandbox"]]
            self.others |= dict.fromkeys(children, ("print(x)", str(self.x)))

    def suspend(self, client: httpx.Client, _: set[int]) -> None:
        client.post(f"/v1/sandboxes/{self.sandbox_id}/suspend")
        client.post(f"/v1/sandboxes/{self.sandbox_id}/resume")

    def claim(self, client: httpx.Client, _: set[int]) -> None:
        """Of a ready one, where there is one; at once used, so that the kill may hit before, while or after its guest is told
        that it was claimed."""
        for _again in range(2):
            word = f"word-{self.random.randrange(10**9)}"
            answer = client.post("/v1/sandboxes", json={"driver": "gvisor", "env": {"CLAIMED": word}})
            if answer.status_code == 201:
                sandbox_id = answer.json()["id"]
                self.outcomes[f"claimed, warm: {answer.json()['origin']['warm']}"] += 1
                self.others[sandbox_id] = (CLAIMED, word)
                client.post(f"/v1/sandboxes/{sandbox_id}/contexts/default/runs", json={"code": CLAIMED})

    def kill_runtime(self) -> None:
        """A sentry, its gofer, a launcher, or the command that saves or starts one."""
        lines = processes_of(self.server.directory)
        lines.pop(self.server.pid, None)
        near = [pid for pid, line in lines.items() if self.sandbox_id in line]
        with suppress(ProcessLookupError, IndexError):  # of a line that is old: it has ended by itself
            pid = self.random.choice(self.random.choice([near, list(lines)]))
            os.kill(pid, signal.SIGKILL)
            self.outcomes[f"killed {lines[pid].split()[0]}"] += 1
            print("killed", pid, lines[pid], flush=True)

    def judge(self, client: httpx.Client, expected: set[int], what: str, *, runtime: bool) -> None:
        until_at_rest(client)
        x = self.x_now(client, what)
        if x is None:
            assert runtime, f"{what}: the sandbox is gone"
            client.delete(f"/v1/sandboxes/{self.sandbox_id}")
            self.fresh(client)
        else:
            assert x in expected, f"{what}: {x} is not in {expected}"
            self.x = max(x, *expected)
        self.judge_others(client, what, runtime=runtime)

    def x_now(self, client: httpx.Client, what: str) -> int | None:
        """In memory and in the file. None: the sandbox has failed."""
        path = f"/v1/sandboxes/{self.sandbox_id}"
        state = client.get(path).json()["state"]
        self.outcomes[f"{what} {state}"] += 1
        print(what, self.sandbox_id, state, flush=True)
        if state in {"paused", "suspended", "stopped"}:
            assert client.post(f"{path}/resume").status_code == 200, what
        said = says(client, self.sandbox_id, 'print(x); assert open("/workspace/x").read() == str(x)', what)
        return None if said is None else int(said)

    def judge_others(self, client: httpx.Client, what: str, *, runtime: bool) -> None:
        there = {item["id"]: item["state"] for item in client.get("/v1/sandboxes?limit=200").json()["items"]}
        assert self.others.keys() <= there.keys(), what
        for sandbox_id, (code, expected) in self.others.items():
            said = says(client, sandbox_id, code, what)
            assert said == expected or (said is None and runtime), f"{what}: {sandbox_id} says {said} for {expected}"
        for sandbox_id in there.keys() - {self.sandbox_id}:
            assert client.delete(f"/v1/sandboxes/{sandbox_id}").status_code == 200
        self.others.clear()
        known = client.get("/v1/snapshots?limit=200").json()["items"]
        assert {item["state"] for item in known} <= {"ready"}, what
        assert self.snapshots.keys() <= {item["id"] for item in known}, what
        directory = self.server.data_dir / "snapshots"
        until(lambda: {path.name for path in directory.iterdir()} == {item["id"] for item in known}, what)
        for item in known:  # few are enough to roll back to
            if len(self.snapshots) > 5 or item["id"] not in self.snapshots:
                self.snapshots.pop(item["id"], None)
                client.delete(f"/v1/snapshots/{item['id']}")
        until(lambda: not [*(self.server.data_dir / "suspended").iterdir()], what)


def until(true: Callable[[], bool], what: str, bound_s: float = 60) -> None:
    deadline = time.monotonic() + bound_s
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def says(client: httpx.Client, sandbox_id: str, code: str, what: str, bound_s: float = 60) -> str | None:
    """What the code prints. None: the sandbox has failed with a reason, which a server may notice a moment after the kill.

    Asked again until one of both: a guest that dials again, or dies, may not be reached for a moment."""
    path = f"/v1/sandboxes/{sandbox_id}"
    deadline = time.monotonic() + bound_s
    while True:
        answer = client.post(f"{path}/contexts/default/runs?wait_s=60", json={"code": code})
        if (answer.status_code, answer.json().get("status")) == (200, "ok"):
            return str(answer.json()["outputs"][0]["text"]).strip()
        if (row := client.get(path).json())["state"] == "failed":
            assert row["failure"]["message"], what
            return None
        assert time.monotonic() < deadline, f"{what}: {sandbox_id} is {row['state']}, but {answer.text}"
        time.sleep(0.05)


def processes_of(directory: Path) -> dict[int, str]:
    """Of a server and all its sandboxes, with their command lines: these have its directory in them."""
    found = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            line = (entry / "cmdline").read_text().replace("\0", " ")
            if str(directory) in line:
                found[int(entry.name)] = line
    return found


def until_at_rest(client: httpx.Client, bound_s: float = 60) -> None:
    """Every object is in a state it may stay in."""
    deadline = time.monotonic() + bound_s
    while True:
        states = {item["state"] for item in client.get("/v1/sandboxes?limit=200").json()["items"]}
        states |= {item["state"] for item in client.get("/v1/snapshots?limit=200").json()["items"]} - {"ready"}
        if states <= AT_REST:
            return
        assert time.monotonic() < deadline, states
        time.sleep(0.05)


@pytest.mark.timeout(180 + 60 * CRASHES)
def test_nothing_acknowledged_is_lost_and_nothing_leaks_when_things_are_killed(own_server: ServerProcess) -> None:
    seed = int(
        os.environ.get("CLOCHE_TEST_SEED") or (time.time() if inside.FULL else 7)
    )  # the moments are chance enough
    print("seed", seed)
    crashes = Crashes(own_server, seed)
    with own_server.client() as client:
        pool = client.put("/v1/pools/ready", json={"image": "python", "min": 1, "max": 2})
        assert pool.status_code in (200, 201), pool.text
        crashes.fresh(client)
    for _ in range(CRASHES):
        crashes.round()
    print(*sorted(crashes.outcomes.items()), sep="\n")
    with own_server.client() as client:
        for snapshot, x in crashes.snapshots.items():
            row = restore(client, crashes.sandbox_id, snapshot)
            assert inside.run(client, row["id"], "print(x)") == str(x)
        client.delete("/v1/pools/ready")
        client.delete(f"/v1/sandboxes/{crashes.sandbox_id}")
    deadline = time.monotonic() + 60
    while (left := processes_of(own_server.directory)).keys() != {own_server.pid}:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)
    own_server.remove_all()
    assert str(own_server.directory) not in Path("/proc/self/mountinfo").read_text()
    for place in ("suspended", "disks/gvisor", "disks/runc"):
        assert list((own_server.data_dir / place).iterdir()) == [], place
