"""Templates and warm pools with real sandboxes: what is built is there, and warm and cold ones are equal."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from . import inside
from .server_process import ServerProcess

FILL_BOUND_S = 120.0

MANY = 10 if inside.FULL else 5
"""Creates at once."""

SPEC = {
    "setup": "echo from setup; echo data > /workspace/file.txt",
    "env": {"GIVEN": "by template", "OVER": "template"},
    "contexts": [
        {"code": "import json, os, random\nx = [41]\nprint('imported')"},
        {"context": {"name": "second", "cwd": "/tmp"}, "code": "y = 7"},
    ],
    "services": [
        {
            "name": "web",
            "argv": ["python3", "-m", "http.server", "8000"],
            "ready": {"type": "port", "port": 8000},
        }
    ],
}


@dataclass
class Warm:
    """A server's client, and the name of a template on one driver; what its build answered."""

    client: httpx.Client
    template: str
    built: dict[str, Any] = field(default_factory=dict)

    def create(self, **body: Any) -> dict[str, Any]:
        answer = self.client.post("/v1/sandboxes", json={"template": self.template, **body})
        assert answer.status_code == 201, answer.text
        return dict(answer.json())

    def pool(self, ready: int) -> None:
        body = {"template": self.template, "min": ready, "max": ready}
        assert self.client.put(f"/v1/pools/{self.template}", json=body).status_code == 200
        self.wait_until_full(ready)

    def wait_until_full(self, ready: int) -> None:
        deadline = time.monotonic() + FILL_BOUND_S
        while (pool := self.client.get(f"/v1/pools/{self.template}").json())["stats"]["ready"] < ready:
            assert time.monotonic() < deadline, pool
            time.sleep(0.05)

    def run(self, sandbox: dict[str, Any], code: str, context: str = "default") -> str:
        path = f"/v1/sandboxes/{sandbox['id']}/contexts/{context}/runs?wait_s=60"
        run = self.client.post(path, json={"code": code}).json()
        assert run["status"] == "ok", run
        return "".join(output["data"]["text/plain"] for output in run["outputs"] if output["type"] == "result")

    def delete(self, *sandboxes: dict[str, Any]) -> None:
        for sandbox in sandboxes:
            self.client.delete(f"/v1/sandboxes/{sandbox['id']}")


@pytest.fixture(scope="module", params=["gvisor", "runc"])
def warm(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Warm]:
    driver = str(request.param)
    with server.client() as client:
        body = {"name": f"warm-{driver}", "driver": driver, **SPEC}
        before = sandboxes_of(client)
        answer = client.post("/v1/templates", json=body)
        assert answer.status_code == 201, answer.text
        assert sandboxes_of(client) <= before, "the sandbox of the build is in the list"
        yield Warm(client, f"warm-{driver}", answer.json())
        client.delete(f"/v1/pools/warm-{driver}")
        assert client.delete(f"/v1/templates/warm-{driver}").status_code == 200


def sandboxes_of(client: httpx.Client) -> set[str]:
    """Of the shared server: other modules may have some, too."""
    return {item["id"] for item in client.get("/v1/sandboxes?limit=200").json()["items"]}


LOOK = """
import os, pathlib, subprocess, sys, urllib.request
(
    x, os.getcwd(), pathlib.Path('/workspace/file.txt').read_text(),
    sorted((k, v) for k, v in os.environ.items() if k in ('GIVEN', 'OVER', 'LATE', 'HOME', 'USER', 'PATH')),
    subprocess.run('echo $GIVEN-$OVER-$LATE', shell=True, capture_output=True, text=True).stdout,
    urllib.request.urlopen('http://127.0.0.1:8000/file.txt').read(),
    'json' in sys.modules, os.getuid(),
)
"""


def look_inside(warm: Warm, sandbox: dict[str, Any]) -> dict[str, Any]:
    """Everything that a user of the sandbox could see of what it was made from."""
    path = f"/v1/sandboxes/{sandbox['id']}"
    contexts = warm.client.get(f"{path}/contexts").json()["items"]
    second = next(one for one in contexts if one["name"] == "second")
    shell = {"shell": "pwd; id -un; ls -A /workspace; ls -A /tmp; echo $GIVEN-$OVER-$LATE"}
    return {
        "default": warm.run(sandbox, LOOK),
        "second": warm.run(sandbox, "import os; (y, os.getcwd(), os.environ['LATE'])", second["id"]),
        "contexts": [{k: v for k, v in one.items() if k in SAME_CONTEXT} for one in contexts],
        "exec": warm.client.post(f"{path}/exec", json=shell).json()["stdout"],
        "services": [
            (one["name"], one["state"], one["restarts"]) for one in warm.client.get(f"{path}/services").json()["items"]
        ],
        "variables": [
            (one["name"], one["type"])
            for one in warm.client.get(f"{path}/contexts/default/variables").json()["variables"]
        ],
        "history": [
            (one["generation"], one["execution_count"], one["code"])
            for one in warm.client.get(f"{path}/contexts/default/history").json()["entries"]
        ],
    }


SAME_CONTEXT = {"name", "language", "cwd", "env", "limits", "restart_policy", "generation", "execution_count", "state"}

DIFFERENT = {"id", "epoch", "created_at", "started_at", "last_activity_at", "origin", "name"}
"""Of two sandboxes, whichever way they were made; origin says which way."""


def test_the_warm_and_the_cold_way_give_equal_sandboxes(warm: Warm) -> None:
    """Field by field, and inside."""
    warm.pool(1)
    wanted = {"env": {"OVER": "create", "LATE": "bound"}, "labels": {"a": "b"}, "metadata": {"n": [1]}}
    first = warm.create(**wanted)
    cold = warm.create(**wanted, warm=False)
    assert (first["origin"]["warm"], cold["origin"]["warm"]) == (True, False)
    assert {k: v for k, v in first.items() if k not in DIFFERENT} == {
        k: v for k, v in cold.items() if k not in DIFFERENT
    }
    assert first["origin"] == {**cold["origin"], "warm": True}
    inside, inside_cold = look_inside(warm, first), look_inside(warm, cold)
    assert inside == inside_cold
    assert "('LATE', 'bound')" in inside["default"]
    assert "by template-create-bound" in inside["default"]
    assert inside["services"] == [("web", "ready", 0)]
    warm.delete(first, cold)


def test_what_was_bound_to_one_is_in_no_other(warm: Warm) -> None:
    """Environment, variables, files and random numbers of two claims of one template."""
    warm.pool(2)
    one, two = warm.create(env={"SECRET": "1"}), warm.create(env={"OTHER": "2"})
    assert one["origin"]["warm"]
    assert two["origin"]["warm"]
    look = "import os; ('SECRET' in os.environ, 'OTHER' in os.environ, os.environ['CLOCHE_SANDBOX_ID'])"
    assert warm.run(one, look) == f"(True, False, '{one['id']}')"
    assert warm.run(two, look) == f"(False, True, '{two['id']}')"
    warm.run(one, "x.append(1); open('/workspace/mine', 'w').close()")
    assert warm.run(two, "import os; (x, os.path.exists('/workspace/mine'))") == "([41], False)"
    draw = "import random; random.random()"
    assert warm.run(one, draw) != warm.run(two, draw)
    warm.delete(one, two)


def test_the_same_inputs_need_no_second_build_and_the_log_is_kept(warm: Warm) -> None:
    driver, before = warm.template.removeprefix("warm-"), sandboxes_of(warm.client)
    again = warm.client.post("/v1/templates", json={"name": warm.template, "driver": driver, **SPEC})
    assert again.status_code == 201
    assert again.json() == warm.built  # the same version, snapshot, moment and time of building
    log = warm.client.get(f"/v1/templates/{warm.template}/log").json()
    assert re.search(r"== setup\nfrom setup\n== context default\nimported\n", log["text"])
    assert log["truncated"] is False
    assert sandboxes_of(warm.client) <= before


FAILURES: list[tuple[str, dict[str, Any], str]] = [
    ("setup", {"setup": "echo about to fail; false; echo never"}, "about to fail"),
    ("setup", {"setup": "sleep 60", "setup_timeout_s": 1}, "longer than 1 s"),
    ("context", {"contexts": [{"code": "print('so far')\nraise ValueError('no such data')"}]}, "no such data"),
    (
        "service",
        {
            "services": [
                {"name": "w", "argv": ["false"], "restart": {"when": "never"}, "ready": {"type": "port", "port": 9}}
            ]
        },
        "service w is",
    ),
]


@pytest.mark.parametrize(("step", "spec", "said"), FAILURES, ids=lambda value: value if isinstance(value, str) else "")
def test_a_step_that_fails_is_named_with_the_end_of_its_log(
    client: httpx.Client, step: str, spec: dict[str, Any], said: str
) -> None:
    answer = client.post("/v1/templates", json={"name": "broken", "driver": "runc", **spec})
    error = answer.json()
    assert (answer.status_code, error["code"], error["details"]["step"]) == (422, "template_build_failed", step)
    assert said in error["details"]["log"]
    assert "never" not in error["details"]["log"]
    failed = client.get(f"/v1/templates/broken@{error['details']['version']}").json()
    assert (failed["state"], failed["failure"].split(":")[0]) == ("failed", step)
    client.delete("/v1/templates/broken")


def test_many_at_once_are_all_served(warm: Warm) -> None:
    warm.pool(MANY)
    with ThreadPoolExecutor(MANY) as threads:
        made = list(threads.map(lambda n: warm.create(env={"N": str(n)}), range(MANY)))
        try:
            assert len({one["id"] for one in made}) == MANY
            assert all(one["origin"]["warm"] for one in made)
            values = list(threads.map(lambda one: warm.run(one, "import os; os.environ['N']"), made))
        finally:
            warm.delete(*made)
    assert values == [repr(str(n)) for n in range(MANY)]


def test_whatever_is_done_first_is_done_to_what_was_claimed(warm: Warm) -> None:
    """At once after the claim, before anybody had time to tell the guest."""
    firsts = ["pause", "stop", "snapshots"] + (["suspend"] if warm.template == "warm-gvisor" else [])
    warm.pool(len(firsts) + 1)
    made = [warm.create(env={"N": str(n)}) for n in range(len(firsts) + 1)]
    assert all(one["origin"]["warm"] for one in made)
    try:
        assert warm.client.delete(f"/v1/sandboxes/{made[-1]['id']}").status_code == 200
        for one, first in zip(made, firsts, strict=False):
            answer = warm.client.post(f"/v1/sandboxes/{one['id']}/{first}", json={} if first == "snapshots" else None)
            assert answer.status_code < 300, answer.text
        for n, one in enumerate(made[:-1]):
            shell = {"shell": "echo $N-$CLOCHE_SANDBOX_ID"}
            said = warm.client.post(f"/v1/sandboxes/{one['id']}/exec", json=shell).json()["stdout"]["data"]["text"]
            assert said == f"{n}-{one['id']}\n"
    finally:
        warm.delete(*made[:-1])
        for snapshot in warm.client.get("/v1/snapshots").json()["items"]:
            warm.client.delete(f"/v1/snapshots/{snapshot['id']}")


DEAD = "sandbox_not_running"


def test_one_that_is_killed_before_its_first_use_says_so(warm: Warm) -> None:
    """What stands still dies when it goes on, with cgroups of version 1.

    The first call makes it go on, and the server sees it die a moment later. A call that comes back before that may say
    only that the guest was not reached, and to send it again; nothing else is right."""
    warm.pool(3)
    made = [warm.create() for _ in range(3)]
    try:
        victim = made[-1]
        for pid in pids_of(victim["id"]):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while (error := warm.client.get(f"/v1/sandboxes/{victim['id']}/contexts").json())["code"] != DEAD:
            assert (error["code"], error["retryable"]) == ("sandbox_unreachable", True), error
            assert time.monotonic() < deadline, error
        assert error["details"]["state"] == "failed"
        assert warm.run(made[0], "1+1") == "2"
    finally:
        warm.delete(*made)


def pids_of(sandbox_id: str) -> set[int]:
    """Walked with `os.walk`, which passes over what is gone: cgroups of other sandboxes, which pools remove meanwhile."""
    found: set[int] = set()
    for directory, _, files in os.walk("/sys/fs/cgroup"):
        if sandbox_id in directory.split("/") and "cgroup.procs" in files:
            found.update(int(pid) for pid in (Path(directory) / "cgroup.procs").read_text().split())
    assert found
    return found


def test_a_claim_survives_a_killed_server(own_server: ServerProcess) -> None:
    """It is killed when it has answered: no guest was told, or some were and nobody wrote it down."""
    with own_server.client() as client:
        warm = Warm(client, "python")
        client.put("/v1/pools/python", json={"image": "python", "min": 3, "max": 3})
        warm.wait_until_full(3)
        made = [client.post("/v1/sandboxes", json={"env": {"LATE": str(n)}}).json() for n in range(3)]
    own_server.kill()
    assert all(one["origin"]["warm"] for one in made)
    own_server.start()
    with own_server.client() as client:
        warm = Warm(client, "python")
        client.delete("/v1/pools/python")
        look = "import os; (os.environ['LATE'], os.environ['CLOCHE_SANDBOX_ID'])"
        assert [warm.run(one, look) for one in made] == [f"('{n}', '{one['id']}')" for n, one in enumerate(made)]


def test_ready_ones_survive_a_killed_server(own_server: ServerProcess) -> None:
    """They are ready again when their guests have dialled: nothing is filled anew."""
    with own_server.client() as client:
        warm = Warm(client, "python")
        client.put("/v1/pools/python", json={"image": "python", "min": 2, "max": 2})
        warm.wait_until_full(2)
    own_server.kill()
    own_server.start()
    with own_server.client() as client:
        warm = Warm(client, "python")
        warm.wait_until_full(2)
        assert client.get("/v1/pools/python").json()["stats"]["refill_s"] is None
        made = client.post("/v1/sandboxes", json={"env": {"LATE": "bound"}}).json()
        assert made["origin"] == {"kind": "image", "id": None, "warm": True}
        assert warm.run(made, "import os; os.environ['LATE']") == "'bound'"


def test_an_intent_makes_one_ready_before_it_is_asked_for(client: httpx.Client) -> None:
    warm = Warm(client, "intended")
    client.put("/v1/pools/intended", json={"image": "python", "min": 0, "max": 2})
    try:
        assert client.post("/v1/intents", json={"count": 1}).json()["pool"] == "intended"
        warm.wait_until_full(1)
        made = client.post("/v1/sandboxes", json={}).json()
        assert made["origin"]["warm"] is True
        warm.delete(made)
    finally:
        client.delete("/v1/pools/intended")
