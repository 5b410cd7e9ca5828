"""Services of a real guest: restarts, readiness, dependencies, and a guest that comes back. And the sandbox' events."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from guest_process import Guest, Json, parse_sse, running_guest, wait_for
from processes_of import Processes


@pytest.fixture(scope="module")
def own_guest() -> Iterator[Guest]:
    with running_guest() as guest:
        yield guest


def declare(guest: Guest, name: str, shell: str, **body: Any) -> Json:
    return guest.call("POST", "/v1/services", {"name": name, "shell": shell, **body}, status=201)


def service(guest: Guest, name: str) -> Json:
    return guest.call("GET", f"/v1/services/{name}")


def until(guest: Guest, name: str, state: str) -> Json:
    wait_for(lambda: service(guest, name)["state"] == state, f"{name} to be {state}")
    return service(guest, name)


def test_a_service_that_dies_comes_back(own_guest: Guest) -> None:
    declare(own_guest, "web", "exec sleep 1000", restart={"when": "on_failure", "delay_s": 0.05})
    first = until(own_guest, "web", "ready")
    pid = Processes(own_guest).get(first["process_id"])["pid"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: service(own_guest, "web")["restarts"] == 1, "the restart")
    again = until(own_guest, "web", "ready")
    assert again["process_id"] != first["process_id"]
    assert again["last_exit"]["signal"] == "SIGKILL"
    assert Processes(own_guest).get(again["process_id"])["service"] == "web"
    own_guest.call("DELETE", "/v1/services/web")
    assert Processes(own_guest).get(again["process_id"])["state"] == "finished"
    own_guest.call("GET", "/v1/services/web", status=404)


def test_a_service_that_always_fails_is_given_up(own_guest: Guest) -> None:
    declare(own_guest, "bad", "exit 9", restart={"max_restarts": 2, "delay_s": 0.01})
    failed = until(own_guest, "bad", "failed")
    assert (failed["restarts"], failed["last_exit"]["code"]) == (2, 9)
    own_guest.call("DELETE", "/v1/services/bad")


def test_a_program_that_is_not_there_is_said(own_guest: Guest) -> None:
    body = {"name": "none", "argv": ["no-such-program"], "restart": {"when": "never"}}
    own_guest.call("POST", "/v1/services", body, status=201)
    assert "No such file" in until(own_guest, "none", "failed")["problem"]
    own_guest.call("DELETE", "/v1/services/none")


def test_a_service_that_ends_well_stays_ended(own_guest: Guest) -> None:
    declare(own_guest, "once", "true")
    assert until(own_guest, "once", "ended")["restarts"] == 0
    own_guest.call("DELETE", "/v1/services/once")


def test_dependents_wait_until_it_is_ready(own_guest: Guest) -> None:
    home = own_guest.home
    ready = {"type": "log", "pattern": "accepting"}
    declare(
        own_guest,
        "db",
        "until [ -e db-go ]; do sleep 0.02; done; touch db-up; echo accepting; exec sleep 1000",
        ready=ready,
    )
    declare(own_guest, "app", "ls db-up > app-saw; exec sleep 1000", depends_on=["db"])
    assert service(own_guest, "app")["state"] == "waiting"
    (home / "db-go").touch()
    until(own_guest, "app", "ready")
    wait_for(lambda: (home / "app-saw").exists() and (home / "app-saw").read_text() == "db-up\n", "app to start late")
    refused = own_guest.call("DELETE", "/v1/services/db", status=409)
    assert refused["details"]["used_by"] == ["app"]
    own_guest.call("DELETE", "/v1/services/app")
    own_guest.call("DELETE", "/v1/services/db")


def test_a_service_is_started_anew_when_asked(own_guest: Guest) -> None:
    declare(own_guest, "again", "exec sleep 1000")
    first = until(own_guest, "again", "ready")["process_id"]
    own_guest.call("POST", "/v1/services/again/restart")
    assert until(own_guest, "again", "ready")["process_id"] != first
    own_guest.call("DELETE", "/v1/services/again")


SLOW_TO_END = (
    "trap 'touch told; until [ -e go ]; do sleep 0.02; done; exit' TERM; touch up; while :; do sleep 0.02; done"
)


@pytest.mark.parametrize("then", ["restart", "delete"])
def test_a_restart_and_what_comes_meanwhile_start_one_program_or_none(own_guest: Guest, then: str) -> None:
    """With a delete a program ran on that belonged to no service; two restarts started two."""
    home = own_guest.home / then
    home.mkdir()
    declare(own_guest, then, SLOW_TO_END, cwd=str(home), restart={"when": "never"})
    wait_for((home / "up").exists, "its trap")
    path = f"/v1/services/{then}"
    second = ("DELETE", path) if then == "delete" else ("POST", f"{path}/restart")
    with ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(own_guest.call, "POST", f"{path}/restart")]
        wait_for((home / "told").exists, "the first one to wait for the end")
        calls.append(pool.submit(own_guest.call, *second))
        if then == "delete":
            wait_for(lambda: not is_declared(own_guest, then), "the second one to wait, too")
        own_guest.health()
        (home / "go").touch()
        for call in calls:
            call.result()
    if then == "restart":
        until(own_guest, then, "ready")
    assert len(programs_of(own_guest, then)) == (0 if then == "delete" else 1)
    if then == "restart":
        own_guest.call("DELETE", path)


def is_declared(guest: Guest, name: str) -> bool:
    return name in [item["name"] for item in guest.call("GET", "/v1/services")["items"]]


def programs_of(guest: Guest, name: str) -> list[str]:
    processes = guest.call("GET", "/v1/processes")["items"]
    return [item["id"] for item in processes if item["service"] == name and item["state"] == "running"]


def test_declaring_is_checked(own_guest: Guest) -> None:
    declare(own_guest, "a", "exec sleep 1000")
    assert declare(own_guest, "a", "exec sleep 1000")["name"] == "a"
    other = {"name": "a", "shell": "sleep 2"}
    assert own_guest.call("POST", "/v1/services", other, status=409)["code"] == "conflict"
    lost = {"name": "b", "shell": "true", "depends_on": ["nobody"]}
    assert own_guest.call("POST", "/v1/services", lost, status=400)["details"]["errors"][0]["field"] == "depends_on"
    own_guest.call("DELETE", "/v1/services/a")


def test_services_come_back_with_the_guest_and_only_root_may_read_them(tmp_path: Path) -> None:
    state = {"CLOCHE_GUEST_STATE_DIR": str(tmp_path / "state")}
    with running_guest(**state) as guest:
        declare(guest, "kept", "exec sleep 1000", env={"SECRET": "x"})
        declare(guest, "after", "exec sleep 1000", depends_on=["kept"])
        declare(guest, "gone", "exec sleep 1000")
        guest.call("DELETE", "/v1/services/gone")
        until(guest, "after", "ready")
    file = tmp_path / "state" / "services.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    with running_guest(**state) as guest:
        assert [item["name"] for item in guest.call("GET", "/v1/services")["items"]] == ["kept", "after"]
        until(guest, "after", "ready")


def events(guest: Guest, cursor: str | None = None) -> Iterator[Json]:
    with guest.http.stream("GET", "/v1/events", params={"cursor": cursor} if cursor else {}) as response:
        yield from parse_sse(response.iter_lines())


def first(guest: Guest, kind: str, **data: Any) -> Json:
    for event in events(guest):
        if event["type"] == kind and all(event["data"].get(name) == value for name, value in data.items()):
            return event
    raise AssertionError(kind)


def test_the_sandbox_tells_what_happens_in_it(own_guest: Guest) -> None:
    assert first(own_guest, "sandbox_started")["data"]["guest_epoch"] == own_guest.health()["guest_epoch"]
    process_id = Processes(own_guest).exec("sh", "-c", "exit 3")["process"]["id"]
    assert first(own_guest, "process_started", process_id=process_id)["data"]["command"] == "sh"
    assert first(own_guest, "process_exited", process_id=process_id)["data"]["code"] == 3
    context = own_guest.create(name="seen")
    context.ok("1")
    context.delete()
    assert first(own_guest, "context_state", context_id=context.id, state="idle")["data"]["name"] == "seen"
    terminal = own_guest.call("POST", "/v1/terminals", {"argv": ["sh", "-c", "exit 4"], "name": "shown"})
    closed = first(own_guest, "terminal_closed", terminal_id=terminal["id"])["data"]
    assert (closed["name"], closed["code"]) == ("shown", 4)
    assert first(own_guest, "terminal_opened", terminal_id=terminal["id"])["data"]["command"] == "sh -c exit 4"
    states = []
    for event in events(own_guest):
        if event["data"].get("context_id") == context.id:
            states.append(event["data"]["state"])
            if states[-1] == "dead":
                break
    assert states == ["idle", "dead"]


def test_limits_that_are_hit_are_told(own_guest: Guest) -> None:
    for number in range(64):
        declare(own_guest, f"s{number}", "true", restart={"when": "never"})
    own_guest.call("POST", "/v1/services", {"name": "more", "shell": "true"}, status=429)
    assert first(own_guest, "limit_reached")["data"]["limit"] == 64
    for number in range(64):
        own_guest.call("DELETE", f"/v1/services/s{number}")
