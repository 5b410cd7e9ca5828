"""`git clone` over the API."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
from pathlib import Path

import pytest
from file_calls import NOBODY, Json, code, post
from guest_process import TIMEOUT_S, Guest, parse_sse, wait_for


@pytest.fixture(scope="module")
def repository(guest: Guest) -> Path:
    path = guest.home.parent / "repository"
    script = """
    git init -q -b main . && git config user.email a@b && git config user.name n
    for n in 1 2 3; do echo $n > f$n && git add . && git commit -qm $n; done
    git branch other HEAD~1
    """
    path.mkdir()
    subprocess.run(["bash", "-ec", script], cwd=path, check=True)
    subprocess.run(["chown", "-R", "nobody", str(path)], check=True)
    return path


def test_clone(guest: Guest, home: Path, repository: Path) -> None:
    done = post(guest, "clone", home / "a", url=f"file://{repository}", depth=1).json()
    assert done["branch"] == "main"
    assert done["path"] == str(home / "a")
    commits = subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", str(home / "a"), "log", "--oneline"], capture_output=True, check=True
    )
    assert len(commits.stdout.splitlines()) == 1
    assert post(guest, "clone", home / "b", url=str(repository), branch="other").json()["branch"] == "other"
    assert not (home / "b/f3").exists()


def test_clone_as_events(guest: Guest, home: Path, repository: Path) -> None:
    body = {"path": str(home / "a"), "url": f"file://{repository}"}
    with guest.http.stream("POST", "/v1/files/clone", json=body, headers={"Accept": "text/event-stream"}) as answer:
        events = list(parse_sse(answer.iter_lines()))
    assert events[-1]["type"] == "finished"
    assert events[-1]["data"]["branch"] == "main"
    progress = [event["data"] for event in events if event["type"] == "progress"]
    assert {"phase", "percent", "done", "total"} == set(progress[0])
    assert progress[-1]["percent"] == 100


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        ("file:///nowhere/at/all", {}, "not_found"),
        ("https://no-such-host.invalid/x.git", {}, "network"),
        ("http://127.0.0.1:1/x.git", {}, "network"),
        ("REPOSITORY", {"branch": "none"}, "branch_not_found"),
        ("ext::sh -c id", {}, "other"),
    ],
)
def test_clone_says_why_it_failed(
    guest: Guest, home: Path, repository: Path, source: str, options: Json, reason: str
) -> None:
    answer = post(guest, "clone", home / "a", url=source.replace("REPOSITORY", str(repository)), **options)
    assert (answer.status_code, code(answer)) == (409, "git_failed")
    assert answer.json()["details"]["reason"] == reason, answer.text
    assert "\N{REPLACEMENT CHARACTER}" not in answer.json()["message"], "git's lines are joined to one"
    assert not (home / "a").exists()


def test_clone_into_something(guest: Guest, home: Path, repository: Path) -> None:
    (home / "full").mkdir()
    (home / "full/x").write_text("")
    assert code(post(guest, "clone", home / "full", url=str(repository))) == "already_exists"
    (home / "empty").mkdir()
    os.chown(home / "empty", NOBODY, NOBODY)
    assert post(guest, "clone", home / "empty", url=str(repository)).is_success


def test_a_clone_ends_with_its_time_and_with_its_client(guest: Guest, home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(TIMEOUT_S)
        source = f"git://127.0.0.1:{silent.getsockname()[1]}/x"
        answer = post(guest, "clone", home / "a", url=source, timeout_s=1)
        assert answer.json()["details"]["reason"] == "timeout"
        if select.select([silent], [], [], 0)[0]:  # on a busy machine its time may be over before it has dialled
            silent.accept()[0].close()
        with socket.create_connection(("127.0.0.1", guest.port)) as client:
            body = json.dumps({"path": str(home / "b"), "url": source}).encode()
            head = f"POST /v1/files/clone HTTP/1.1\r\nHost: guest\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            git, _ = silent.accept()
        with git:
            git.settimeout(TIMEOUT_S)
            while git.recv(4096):  # up to its end
                pass
        wait_for(lambda: not (home / "b").exists(), "what it has made to be removed")
