"""A guest that becomes another one: as a copy out of a checkpoint, and claimed out of a pool."""

from __future__ import annotations

import ast
import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from guest_process import guest_environ
from uplink_hub import Connection, Hub, call

from cloche.models.guest import Identity
from cloche_guest.contexts import IdentityChange
from cloche_guest.contexts._pending_identity import PendingIdentity
from cloche_guest.uplink import EAGER_PAUSE_S, EAGER_TRIES, FIRST_PAUSE_S, LONGEST_PAUSE_S, Pauses

ID, OTHER = "a" * 20, "b" * 20
SEED = "0a" * 32


@pytest.fixture
async def hub(tmp_path: Path) -> AsyncIterator[Hub]:
    made = Hub(tmp_path / "uplink.sock")
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def guest(tmp_path: Path, hub: Hub) -> AsyncIterator[asyncio.subprocess.Process]:
    environ = guest_environ(tmp_path, tmp_path) | {
        "CLOCHE_GUEST_UPLINK": str(hub.path),
        "CLOCHE_SANDBOX_ID": ID,
        "CLOCHE_EPOCH": "e1",
        "CLOCHE_UPLINK_TOKEN": "the token",
        "CLOCHE_ENV": json.dumps({"OLD": "1", "KEPT": "1"}),
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "cloche_guest", env=environ)
    yield process
    process.terminate()
    assert await asyncio.wait_for(process.wait(), 60) == 0


async def rebirth(hub: Hub, was: str = "", **identity: Any) -> Connection:
    """What a server does around a checkpoint, as one guest sees it; returns a connection of the new life. `was`: its epoch
    before, if it has not dialled with that."""
    connection = await hub.take()
    await hub.stop_listening()
    await call(connection, "POST", "/v1/uplinks/close", {"reason": "snapshot"})
    await asyncio.wait_for(hub.all_closed(), 60)
    hub.previous = (hub.hellos[-1]["sandbox_id"], was or hub.hellos[-1]["epoch"])
    hub.identity = {"sandbox_id": OTHER, "epoch": "e2", "reason": "fork", "seed": SEED} | identity
    await hub.open()
    return await hub.take()


async def run(connection: Connection, code: str, **body: Any) -> dict[str, Any]:
    made: dict[str, Any] = await call(connection, "POST", "/v1/contexts/default/runs?wait_s=60", {"code": code, **body})
    assert made.get("status") == "ok", made
    return made


async def begin(connection: Connection, body: dict[str, Any]) -> dict[str, Any]:
    """A run whose code prints "begun" at first, and has done so. One that is only sent may begin in the next life."""
    made: dict[str, Any] = await call(connection, "POST", "/v1/contexts/default/runs?wait_s=0", body)
    async with asyncio.timeout(60):
        while not made["outputs"]:
            await asyncio.sleep(0.01)
            made = await call(connection, "GET", f"/v1/contexts/default/runs/{made['id']}")
    return made


async def value(connection: Connection, code: str, **body: Any) -> str:
    return str((await run(connection, code, **body))["outputs"][-1]["data"]["text/plain"])


async def test_every_connection_is_closed_on_request_also_streams_and_sockets_of_viewers(
    hub: Hub, guest: asyncio.subprocess.Process
) -> None:
    """gVisor refuses to save a sandbox with a connection to the host."""
    asking, stream, viewer = await hub.take(), await hub.take(), await hub.take()
    terminal = await call(asking, "POST", "/v1/terminals", {"argv": ["cat"]})
    stream[1].write(b"GET /v1/events HTTP/1.1\r\nHost: guest\r\n\r\n")
    assert await stream[0].readuntil(b"\r\n\r\n")
    viewer[1].write(
        f"GET /v1/terminals/{terminal['id']}/attach HTTP/1.1\r\nHost: guest\r\nConnection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
        "Sec-WebSocket-Protocol: term.v1\r\n\r\n".encode()
    )
    assert b"101" in await viewer[0].readuntil(b"\r\n\r\n")
    await hub.stop_listening()
    await call(asking, "POST", "/v1/uplinks/close", {"reason": "snapshot"})
    await asyncio.wait_for(hub.all_closed(), 60)
    await hub.open()
    found = await call(await hub.take(), "GET", f"/v1/terminals/{terminal['id']}")
    assert found["state"] == "running"


async def test_after_the_uplinks_were_closed_it_dials_within_50_ms(hub: Hub, guest: asyncio.subprocess.Process) -> None:
    for _ in range(15):  # one that is quick will do: others may be busy now and then
        connection = await hub.take()
        await hub.stop_listening()
        await call(connection, "POST", "/v1/uplinks/close", {})
        await asyncio.wait_for(hub.all_closed(), 60)
        await asyncio.sleep(0.2)  # as long as a checkpoint takes: the growing pause would be far over 50 ms by now
        await hub.open()
        opened = time.monotonic()
        await hub.take()
        taken_s = time.monotonic() - opened
        if taken_s < 0.05:
            return
    pytest.fail(f"it took {taken_s:.3f} s")


async def test_a_copy_becomes_who_it_is_told_to_be_and_keeps_its_variables(
    hub: Hub, guest: asyncio.subprocess.Process
) -> None:
    first = await hub.take()
    await run(first, "kept = 41; import os; os.environ['MINE'] = 'mine'")
    before = await call(first, "GET", "/v1/health")
    connection = await rebirth(hub, env={"GIVEN": "anew", "KEPT": "1"})
    hello = hub.hellos[-1]
    assert (hello["sandbox_id"], hello["epoch"]) == (OTHER, "e2")
    assert (await call(connection, "GET", "/v1/health"))["guest_epoch"] == hello["guest_epoch"] != before["guest_epoch"]
    seen = await value(
        connection, "kept + 1, [os.environ.get(n) for n in ('CLOCHE_SANDBOX_ID', 'GIVEN', 'OLD', 'KEPT', 'MINE')]"
    )
    assert seen == repr((42, [OTHER, "anew", None, "1", "mine"]))
    process = await call(connection, "POST", "/v1/exec", {"shell": "echo $CLOCHE_SANDBOX_ID $GIVEN"})
    assert process["stdout"]["data"]["text"] == f"{OTHER} anew\n"


async def test_the_session_of_the_checkpoint_is_the_token_of_one_hello(
    hub: Hub, guest: asyncio.subprocess.Process
) -> None:
    await rebirth(hub)
    old, new = (next(hello for hello in hub.hellos if hello["epoch"] == epoch) for epoch in ("e1", "e2"))
    assert new["token"] == old["session"]
    assert new["session"] not in (old["session"], old["token"])


async def cursors(connection: Connection, run_id: str) -> dict[str, str]:
    """Epochs of journals of all kinds."""

    async def first(kind: str) -> dict[str, Any]:
        found: dict[str, Any] = (await call(connection, "GET", f"/v1/{kind}"))["items"][0]
        return found

    run = await call(connection, "GET", f"/v1/contexts/default/runs/{run_id}")
    cursors = {"run": run["cursor"]} | {kind: (await first(kind))["cursor"] for kind in ("processes", "watches")}
    return {kind: cursor.partition(".")[0] for kind, cursor in cursors.items()} | {
        "terminal": (await first("terminals"))["epoch"]
    }


@pytest.mark.parametrize(("reason", "goes_on"), [("fork", False), ("restore", False), ("resume", True)])
async def test_cursors_of_a_copy_are_foreign_and_those_of_a_woken_sandbox_go_on(
    hub: Hub, guest: asyncio.subprocess.Process, tmp_path: Path, reason: str, goes_on: bool
) -> None:
    first = await hub.take()
    done = (await run(first, "print('before')"))["id"]
    await call(first, "POST", "/v1/terminals", {"argv": ["cat"]})
    await call(first, "POST", "/v1/processes", {"argv": ["cat"], "stdin": "open"})
    await call(first, "POST", "/v1/watches", {"path": str(tmp_path)})
    before = await cursors(first, done)
    connection = await rebirth(hub, reason=reason)
    after = await cursors(connection, done)
    assert before.keys() == after.keys()
    assert [before[name] == after[name] for name in before] == [goes_on] * len(before)


async def test_a_cell_that_runs_through_it_goes_on_and_gets_the_new_environment(
    hub: Hub, guest: asyncio.subprocess.Process
) -> None:
    code = (
        "import os\nprint('begun')\nwhile os.environ.get('GIVEN') != 'anew': pass\nprint('done', os.environ['OF_RUN'])"
    )
    first = await hub.take()
    running = await begin(first, {"code": code, "env": {"OF_RUN": "run"}})
    connection = await rebirth(hub, env={"GIVEN": "anew", "OF_RUN": "sandbox"})
    done = await call(connection, "GET", f"/v1/contexts/default/runs/{running['id']}?wait_s=60")
    assert done["outputs"] == [{"type": "stdout", "text": "begun\ndone run\n"}]
    assert await value(connection, "os.environ['OF_RUN']") == "'sandbox'"


SEEDED = "import random; random.seed(1)"
DRAW = "random.random()"


async def test_copies_draw_other_numbers_each_by_its_seed(hub: Hub, guest: asyncio.subprocess.Process) -> None:
    connection = await hub.take()
    await run(connection, SEEDED)
    drawn = []
    for number, seed in enumerate((SEED, "0b" * 32, SEED)):
        connection = await rebirth(hub, epoch=f"e{number + 2}", seed=seed)
        drawn.append(await value(connection, DRAW))
    assert drawn[0] != drawn[1]
    assert drawn[0] == drawn[2]


async def test_a_sandbox_that_goes_back_or_goes_on_draws_the_numbers_it_would_have(
    hub: Hub, guest: asyncio.subprocess.Process
) -> None:
    connection = await hub.take()
    expected = await value(connection, SEEDED + "\n" + DRAW)
    for number, reason in enumerate(("restore", "resume")):
        await run(connection, SEEDED)
        connection = await rebirth(hub, epoch=f"e{number + 2}", reason=reason)
        assert await value(connection, DRAW) == expected


STAND_IN = """
import sys, types
module = sys.modules['numpy.random'] = types.ModuleType('numpy.random')
module.seed = lambda words: globals().update(words=words)
"""


async def test_the_generator_of_numpy_gets_eight_words_of_32_bits(hub: Hub, guest: asyncio.subprocess.Process) -> None:
    """The real one is in images: tests/e2e."""
    await run(await hub.take(), STAND_IN)
    connection = await rebirth(hub)
    assert await value(connection, "len(words), all(0 <= word < 2**32 for word in words)") == "(8, True)"


async def test_a_module_that_was_not_imported_stays_so(hub: Hub, guest: asyncio.subprocess.Process) -> None:
    """Seeding must not cost every kernel the memory of numpy."""
    await run(await hub.take(), "import sys")
    assert await value(await rebirth(hub), "[name in sys.modules for name in ('numpy', 'torch')]") == "[False, False]"


HOOK = """
import cloche_sandbox, threading
told = []
@cloche_sandbox.on_restore
def hook(reason, sandbox_id):
    told.append((reason, sandbox_id, threading.current_thread() is threading.main_thread()))
"""


async def test_hooks_of_an_idle_kernel_have_run_when_the_sandbox_answers(
    hub: Hub, guest: asyncio.subprocess.Process
) -> None:
    await run(await hub.take(), HOOK + HOOK.replace("told = []", ""))  # defined again: still called once
    connection = await rebirth(hub)
    listed = await call(connection, "GET", "/v1/contexts/default/variables")
    summary = next(variable["summary"] for variable in listed["variables"] if variable["name"] == "told")
    assert summary == repr([("fork", OTHER, True)])
    assert await value(connection, "cloche_sandbox.sandbox_id()") == repr(OTHER)


async def test_hooks_of_a_busy_kernel_run_between_its_cell_and_the_next(
    hub: Hub, guest: asyncio.subprocess.Process
) -> None:
    first = await hub.take()
    await run(first, HOOK)
    code = "import os\nprint('begun')\nwhile os.environ.get('GIVEN') != 'anew': pass\n"
    code += "for _ in range(10**6): pass\nin_cell = list(told)"
    running = await begin(first, {"code": code})
    connection = await rebirth(hub, env={"GIVEN": "anew"})
    assert await value(connection, "in_cell, told") == repr(([], [("fork", OTHER, True)]))
    done = await call(connection, "GET", f"/v1/contexts/default/runs/{running['id']}")
    assert done["status"] == "ok"


async def test_a_hook_that_fails_or_exits_hurts_nobody(hub: Hub, guest: asyncio.subprocess.Process) -> None:
    code = "cloche_sandbox.on_restore(lambda *_: 1 / 0)\ncloche_sandbox.on_restore(lambda *_: exit())\n"
    await run(await hub.take(), "import cloche_sandbox\n" + code + HOOK)
    connection = await rebirth(hub)
    assert await value(connection, "told") == repr([("fork", OTHER, True)])


def claim(**fields: Any) -> dict[str, Any]:
    identity = {"sandbox_id": ID, "epoch": "e2", "env": {}, "sudo": False, "now": "2026-01-01T00:00:00Z"}
    return identity | {"seed": SEED, "reason": "claim"} | fields


async def test_a_claimed_sandbox_has_the_new_environment_when_it_is_answered(
    hub: Hub, guest: asyncio.subprocess.Process
) -> None:
    connection = await hub.take()
    await run(connection, HOOK)
    before = await call(connection, "GET", "/v1/health")
    hub.identity = {"sandbox_id": ID, "epoch": "e2", "env": {"LATE": "bound"}}
    assert await call(connection, "POST", "/v1/identity", claim(env={"LATE": "bound"})) is None
    listed = await call(connection, "GET", "/v1/contexts/default/variables")
    assert repr([("claim", ID, True)]) in [variable["summary"] for variable in listed["variables"]]
    assert await value(connection, "import os; os.environ['LATE'], told") == repr(("bound", [("claim", ID, True)]))
    assert (await call(connection, "GET", "/v1/health"))["guest_epoch"] == before["guest_epoch"]
    process = await call(connection, "POST", "/v1/exec", {"shell": "echo $LATE"})
    assert process["stdout"]["data"]["text"] == "bound\n"


async def test_a_claim_without_hooks_comes_with_the_next_cell_to_every_kernel(
    hub: Hub, guest: asyncio.subprocess.Process
) -> None:
    connection = await hub.take()
    other = (await call(connection, "POST", "/v1/contexts", {"cwd": "/"}))["id"]
    await run(connection, "import os, random; random.seed(1)")
    await call(connection, "POST", "/v1/identity", claim(env={"LATE": "bound"}))
    code = {"code": "import os, random; os.environ['LATE'], 'OLD' in os.environ, random.random()"}
    drawn = set()
    for context in ("default", other):
        made = await call(connection, "POST", f"/v1/contexts/{context}/runs?wait_s=60", code)
        late, old, number = ast.literal_eval(made["outputs"][-1]["data"]["text/plain"])
        assert (late, old) == ("bound", False)
        drawn.add(number)
    assert len(drawn | {random.Random(1).random()}) == 3


async def test_questions_and_new_kernels_after_a_claim_have_the_new_environment(
    hub: Hub, guest: asyncio.subprocess.Process
) -> None:
    connection = await hub.take()
    shown = (
        "import os\nclass Shown:\n    def __repr__(self): return 'it is ' + os.environ.get('LATE', 'none')\nx = Shown()"
    )
    await run(connection, shown)
    await call(connection, "POST", "/v1/identity", claim(env={"LATE": "bound"}))
    told = await call(connection, "POST", "/v1/contexts/default/inspect", {"code": "x"})
    assert "it is bound" in told["data"]["text/plain"]
    new = (await call(connection, "POST", "/v1/contexts", {"cwd": "/"}))["id"]
    code = {"code": "import os; os.environ['LATE']"}
    made = await call(connection, "POST", f"/v1/contexts/{new}/runs?wait_s=60", code)
    assert made["outputs"][-1]["data"]["text/plain"] == "'bound'"


async def test_threads_of_a_kernel_and_cells_that_run_see_a_claim_without_another_cell(
    hub: Hub, guest: asyncio.subprocess.Process
) -> None:
    connection = await hub.take()
    watch = "import os, threading, time\ndef watch():\n    while os.environ.get('LATE') != 'bound': time.sleep(0.01)\n"
    await run(connection, watch + "thread = threading.Thread(target=watch); thread.start()")
    busy = (await call(connection, "POST", "/v1/contexts", {"cwd": "/"}))["id"]
    runs = f"/v1/contexts/{busy}/runs"
    running = await call(
        connection, "POST", f"{runs}?wait_s=0", {"code": watch + "watch()"}
    )  # before it begins is fine
    await call(connection, "POST", "/v1/identity", claim(env={"LATE": "bound"}))
    assert (await call(connection, "GET", f"{runs}/{running['id']}?wait_s=60"))["status"] == "ok"
    assert await value(connection, "thread.join(); os.environ.pop('LATE')") == "'bound'"
    assert await value(connection, "'LATE' in os.environ") == "False"  # it comes by two ways, and is taken on once


async def test_a_copy_made_while_a_claim_waits_for_a_cell_has_the_environment_of_the_copy(
    hub: Hub, guest: asyncio.subprocess.Process
) -> None:
    connection = await hub.take()
    await run(connection, "import os")
    claimed = {"LATE": "bound", "THEN": "1"}
    await call(connection, "POST", "/v1/identity", claim(env=claimed))
    connection = await rebirth(hub, was="e2", epoch="e3", env={"LATE": "again"})
    assert await value(connection, "os.environ['LATE'], 'THEN' in os.environ") == "('again', False)"


async def test_what_waits_goes_by_itself_unless_a_cell_has_brought_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloche_guest.contexts._pending_identity.LATER_S", 0.01)
    sent: asyncio.Queue[Any] = asyncio.Queue()
    pending = PendingIdentity(sent.put_nowait)
    pending.put({"n": 1})
    assert pending.with_cell() == {"identity": {"n": 1}}
    pending.put({"n": 2})
    pending.drop()
    pending.put({"n": 3})
    assert await asyncio.wait_for(sent.get(), 60) == {"n": 3}
    pending.say()
    assert sent.empty()
    assert pending.with_cell() == {"identity": {"n": 3}}  # a cell may overtake a message on the control channel
    assert pending.with_cell() == {}


async def test_an_answer_that_is_older_than_the_claim_does_not_take_it_back(
    hub: Hub, guest: asyncio.subprocess.Process
) -> None:
    """The connection that brings the claim is replaced at once, by a hello that a slow server answers as before."""
    connection = await hub.take()
    await call(connection, "POST", "/v1/identity", claim(env={"LATE": "bound"}))
    hub.identity = {"sandbox_id": ID, "epoch": "e2", "env": {"LATE": "bound"}}
    for _ in range(6):
        process = await call(connection, "POST", "/v1/exec", {"shell": "echo $LATE"})
        assert process["stdout"]["data"]["text"] == "bound\n"


async def test_a_claim_for_another_sandbox_changes_nothing(hub: Hub, guest: asyncio.subprocess.Process) -> None:
    connection = await hub.take()
    answer = await call(connection, "POST", "/v1/identity", claim(sandbox_id=OTHER, env={"LATE": "bound"}))
    assert answer["code"] == "conflict"
    process = await call(connection, "POST", "/v1/exec", {"shell": "echo $LATE"})
    assert process["stdout"]["data"]["text"] == "\n"


def identity(**fields: Any) -> Identity:
    return Identity.model_validate(claim(**fields))


def test_only_what_differs_is_told() -> None:
    change = IdentityChange({"A": "1", "B": "1", "C": "1"}, {"A": "1", "B": "2", "D": "1"}, identity())
    content = change.for_kernel("default", {"B": "context", "E": "context"})
    assert (content["set"], content["unset"]) == ({"D": "1"}, ["C"])


def test_every_kernel_gets_a_seed_of_its_own() -> None:
    change = IdentityChange({}, {}, identity())
    seeds = {change.for_kernel(name, {})["seed"] for name in ("default", "ctx-1", "default")}
    assert len(seeds) == 2
    assert SEED not in seeds


@pytest.mark.parametrize("fields", [{"reason": "restore"}, {"reason": "resume"}, {"seed": ""}])
def test_no_seed_where_nothing_was_copied(fields: dict[str, Any]) -> None:
    assert IdentityChange({}, {}, identity(**fields)).for_kernel("default", {})["seed"] == ""


def test_pauses_grow_but_for_a_while_after_a_request_to_close() -> None:
    pauses = Pauses()
    assert [pauses.next(), pauses.next()] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S]
    pauses.be_eager()
    assert {pauses.next() for _ in range(EAGER_TRIES)} == {EAGER_PAUSE_S}
    assert max(pauses.next() for _ in range(10)) == LONGEST_PAUSE_S
    pauses.succeeded()
    assert pauses.next() == FIRST_PAUSE_S


def test_a_guest_that_listens_has_no_uplinks_to_close(tmp_path: Path) -> None:
    from guest_process import running_guest

    with running_guest() as listening:
        assert listening.call("POST", "/v1/uplinks/close", {}, status=409)["code"] == "conflict"
