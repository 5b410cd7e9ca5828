"""Pause, suspend, stop, resume and policies, with real sandboxes."""

from __future__ import annotations

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from cloche import Client, Sandbox, SandboxNotRunning

from . import inside
from .server_process import ServerProcess
from .test_terminals import attach, open_terminal

Make = Callable[..., str]

KILLS = 20 if inside.FULL else 4


def run(client: httpx.Client, sandbox_id: str, code: str) -> str:
    """What the cell printed; it must have gone well."""
    answer = client.post(f"/v1/sandboxes/{sandbox_id}/contexts/default/runs?wait_s=60", json={"code": code})
    assert answer.status_code == 200, answer.text
    finished = answer.json()
    assert finished["status"] == "ok", finished
    return "".join(each["text"] for each in finished["outputs"] if each["type"] == "stdout")


def change(client: httpx.Client, sandbox_id: str, what: str) -> dict[str, object]:
    answer = client.post(f"/v1/sandboxes/{sandbox_id}/{what}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def state_of(client: httpx.Client, sandbox_id: str) -> str:
    return str(client.get(f"/v1/sandboxes/{sandbox_id}").json()["state"])


def becomes(client: httpx.Client, sandbox_id: str, state: str, bound_s: float = 60) -> None:
    deadline = time.monotonic() + bound_s
    while (now := state_of(client, sandbox_id)) != state:
        assert time.monotonic() < deadline, now
        time.sleep(0.05)


def test_memory_and_files_are_exact_after_every_suspend(client: httpx.Client, make_sandbox: Make) -> None:
    """e2b-dev/E2B#884: what was written after the second resume was lost; #736, #582: it answered 500 or 404."""
    box = make_sandbox(driver="gvisor")
    run(client, box, "log = []")
    for n in range(4):
        run(client, box, f"log.append({n}); print({n}, file=open('/workspace/log', 'a'))")
        changed = change(client, box, "suspend")
        assert changed["state"] == "suspended"
        assert changed["paused_s"]
        said = run(client, box, "print(log, open('/workspace/log').read().split())")
        assert said == f"{list(range(n + 1))} {[str(i) for i in range(n + 1)]}\n"


def test_many_calls_at_once_wake_it_and_all_are_answered(client: httpx.Client, make_sandbox: Make) -> None:
    box = make_sandbox(driver="gvisor")
    run(client, box, "x = 0")
    change(client, box, "suspend")
    with ThreadPoolExecutor(10) as pool:
        answers = list(pool.map(lambda _: run(client, box, "x += 1; print(x)"), range(10)))
    assert sorted(int(answer) for answer in answers) == list(range(1, 11))


def test_a_paused_sandbox_stands_still_and_goes_on(client: httpx.Client, make_sandbox: Make, driver: str) -> None:
    box = make_sandbox(driver=driver)
    code = "import time\nwith open('/workspace/beats', 'a', buffering=1) as log:\n"
    code += "    while True:\n        print(time.time(), file=log)\n        time.sleep(0.01)"
    url = f"/v1/sandboxes/{box}"
    assert client.post(f"{url}/contexts/default/runs?wait_s=0", json={"code": code}).status_code == 202
    beats_after(client, box, 0)
    changed = change(client, box, "pause")
    assert changed["state"] == "paused"
    stands = time.time()
    time.sleep(0.3)  # the time in which it would have written thirty times
    goes_on = time.time()
    assert change(client, box, "resume")["epoch"] == changed["epoch"]
    beats = beats_after(client, box, goes_on)
    # The clocks of host and sandbox may differ by some milliseconds.
    assert [beat for beat in beats if stands + 0.05 < beat < goes_on - 0.05] == []
    assert client.post(f"{url}/contexts/default/interrupt").status_code == 200


def beats_after(client: httpx.Client, box: str, moment: float) -> list[float]:
    """The times that the cell wrote, once one of them is later than `moment`; at most 60 s."""
    deadline = time.monotonic() + 60
    while True:
        answer = client.get(f"/v1/sandboxes/{box}/files/content", params={"path": "/workspace/beats"})
        beats = [float(line) for line in answer.text.splitlines()[:-1]] if answer.status_code == 200 else []
        if beats and beats[-1] > moment:
            return beats
        assert time.monotonic() < deadline, answer.text


def events_until(client: httpx.Client, box: str, kind: str, **data: object) -> list[tuple[str, dict[str, object]]]:
    """The journal of the sandbox, to the first event of that kind with that data."""
    found: list[tuple[str, dict[str, object]]] = []
    with client.stream("GET", f"/v1/sandboxes/{box}/events") as reader:
        name = ""
        for line in reader.iter_lines():
            name = line.removeprefix("event: ") if line.startswith("event: ") else name
            if line.startswith("data: "):
                found.append((name, json.loads(line.removeprefix("data: "))))
                if name == kind and data.items() <= found[-1][1].items():
                    return found
    raise AssertionError(found)


def test_the_journal_tells_of_a_pause_and_a_suspend(client: httpx.Client, make_sandbox: Make, driver: str) -> None:
    box = make_sandbox(driver=driver)
    change(client, box, "pause")
    change(client, box, "resume")
    paused = events_until(client, box, "sandbox_state", state="running", reason="resume")
    assert [(kind, data["state"]) for kind, data in paused if kind == "sandbox_state"] == [
        ("sandbox_state", "paused"),
        ("sandbox_state", "running"),
    ]
    if driver == "gvisor":
        change(client, box, "suspend")
        change(client, box, "resume")
        whole = events_until(client, box, "sandbox_reborn", reason="resume")
        assert whole[: len(paused)] == paused
        kinds = ("sandbox_state", "uplinks_closed", "sandbox_reborn")
        rest = [(kind, data.get("state"), data["reason"]) for kind, data in whole[len(paused) :] if kind in kinds]
        assert rest == [
            ("sandbox_state", "suspending", "suspend"),
            ("uplinks_closed", None, "suspend"),
            ("sandbox_reborn", None, "resume"),
        ]


def test_a_stop_keeps_files_and_services_and_ends_the_rest(
    client: httpx.Client, make_sandbox: Make, driver: str
) -> None:
    """agentuity/sdk#1161, #1189: files were gone after a resume."""
    box = make_sandbox(driver=driver)
    url = f"/v1/sandboxes/{box}"
    run(client, box, "x = 1; print('kept', file=open('/workspace/f', 'w'))")
    command = ["sh", "-c", "echo up >> /workspace/service; exec sleep 1000"]
    service = client.post(f"{url}/services", json={"name": "web", "argv": command})
    assert service.status_code == 201, service.text
    _until_written(client, box, "up\n")
    stopped = change(client, box, "stop")
    assert stopped["state"] == "stopped"
    assert state_of(client, box) == "stopped"
    said = run(client, box, "print('x' in globals(), open('/workspace/f').read())")
    assert said == "False kept\n\n"
    _until_written(client, box, "up\nup\n")
    _until_ready(client, f"{url}/services/web")


def _until_written(client: httpx.Client, box: str, text: str) -> None:
    """By the service, whose program may have begun and written nothing yet."""
    deadline = time.monotonic() + 60
    while client.get(f"/v1/sandboxes/{box}/files/content", params={"path": "/workspace/service"}).text != text:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _until_ready(client: httpx.Client, url: str) -> None:
    """Its program may have written before the guest has noted that it runs."""
    deadline = time.monotonic() + 60
    while (state := client.get(url).json()["state"]) != "ready":
        assert time.monotonic() < deadline, state
        time.sleep(0.05)


def test_an_idle_sandbox_is_suspended_a_busy_one_is_not_and_the_last_write_is_kept(
    server: ServerProcess, client: httpx.Client, make_sandbox: Make
) -> None:
    """e2b-dev/E2B#1104: a suspend by timeout lost the last writes, one by hand did not. daytonaio/daytona#4805: a dead client
    kept it awake. cloudflare/sandbox-sdk#316: the policy was forgotten when it had slept."""
    box = make_sandbox(driver="gvisor")
    url = f"/v1/sandboxes/{box}/contexts/default/runs"
    code = "import time; time.sleep(3); print(time.time(), file=open('/workspace/f', 'w'))"
    dead = attach(server, box, open_terminal(client, box, "cat"))  # it reads nothing and says nothing from here on
    with client.stream("GET", f"/v1/sandboxes/{box}/events") as reader:  # merely connected
        lines = reader.iter_lines()
        next(lines)
        assert client.post(f"{url}?wait_s=0", json={"code": code}).status_code == 202
        policy = {"lifecycle": {"idle_timeout_s": 1}}
        assert client.patch(f"/v1/sandboxes/{box}", json=policy).status_code == 200
        becomes(client, box, "suspended")
        slept = time.time()
        assert any("sandbox_not_running" in line for line in lines)
    client.get(f"/v1/sandboxes/{box}/contexts")
    assert state_of(client, box) == "suspended"
    ended = float(run(client, box, "print(open('/workspace/f').read())"))
    assert ended < slept, "it was suspended while the cell ran, which went on when it was woken"
    shown = client.get(f"/v1/sandboxes/{box}").json()
    assert shown["lifecycle"]["idle_timeout_s"] == 1
    # On a slow machine it is at rest again by now.
    assert shown["lifetime"]["idle_at"] is not None or shown["state"] in ("suspending", "suspended")
    dead.close()


def test_a_terminal_is_told_and_shows_the_same_shell_when_it_comes_back(server: ServerProcess) -> None:
    with (
        Client(f"http://127.0.0.1:{server.port}", server.key) as client,
        Sandbox.create(client=client, driver="gvisor") as sandbox,
        server.client() as http,
    ):
        terminal = sandbox.terminals.create(command=["bash"])
        with terminal.attach() as shell:
            shell.send("kept=yes; echo $((40+2))\n")
            shell.expect("42")
            change(http, sandbox.id, "suspend")
            with pytest.raises(SandboxNotRunning):
                shell.expect("never", timeout_s=60)
        assert state_of(http, sandbox.id) == "suspended"
        with terminal.attach() as shell:
            shell.send("echo $kept $((50+1))\n")
            shell.expect("yes 51")


class Changer:
    """Suspends and wakes one sandbox, again and again, and knows what was acknowledged."""

    def __init__(self, server: ServerProcess, box: str) -> None:
        self.acknowledged = 0
        self._server = server
        self._box = box
        self._stop = threading.Event()

    def __call__(self) -> None:
        with contextlib.suppress(httpx.TransportError), self._server.client() as client:
            while not self._stop.is_set():
                wanted = self.acknowledged + 1
                code = f"x = max(x, {wanted}); open('/workspace/x', 'w').write(str(x)); print(x)"
                answer = client.post(f"/v1/sandboxes/{self._box}/contexts/default/runs", json={"code": code})
                if answer.status_code == 200 and answer.json()["status"] == "ok":
                    self.acknowledged = wanted
                client.post(f"/v1/sandboxes/{self._box}/suspend")

    def stop(self) -> None:
        self._stop.set()


@pytest.fixture
def changer(own_server: ServerProcess) -> Iterator[Changer]:
    with own_server.client() as client:
        box = client.post("/v1/sandboxes", json={"driver": "gvisor"}).json()["id"]
        run(client, box, "x = 0")
    made = Changer(own_server, box)
    yield made
    made.stop()


def test_a_server_killed_at_random_during_suspends_and_resumes_loses_nothing(
    own_server: ServerProcess, changer: Changer
) -> None:
    luck = random.Random(4)
    box = changer._box
    for _ in range(KILLS):
        with ThreadPoolExecutor(1) as pool:
            under_way = pool.submit(changer)
            time.sleep(luck.uniform(0.05, 1.2))  # not a wait: the moment of the kill
            own_server.kill()
            under_way.result(timeout=60)
        own_server.start()
        with own_server.client() as client:
            assert state_of(client, box) in {"running", "suspended"}
            said = run(client, box, "print(x, open('/workspace/x').read() if x else 0)").split()
            assert said[0] == said[1]
            assert int(said[0]) in (changer.acknowledged, changer.acknowledged + 1)
            changer.acknowledged = int(said[0])
            run_dir = own_server.directory / "run"
            assert [path.name for path in (run_dir / "gvisor").iterdir()] == [box]
            assert list((own_server.data_dir / "suspended").iterdir()) == []
