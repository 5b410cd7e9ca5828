"""Processes through the SDK, on a real guest."""

from __future__ import annotations

import hashlib
import os
import random
import re
import socket
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress

import pytest
from guest_transport import SANDBOX, Guest, async_link_to, link_to, running_guest
from mixed_output import FLOOD_MB, TIME_S, MixedOutput

from cloche import (
    AsyncProcesses,
    ConnectionFailed,
    ExecFailed,
    InvalidRequest,
    NotFound,
    ProcessEnded,
    Processes,
    ProcessStartFailed,
    Services,
    WaitTimeout,
    output_bytes,
)
from cloche._link import AsyncLink, Link
from cloche._processes import ExecFlows
from cloche.cli._processes import pass_input
from cloche.models import ExitCondition, LogCondition, PortCondition, Tty

PYTHON = sys.executable


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    with running_guest() as running:
        yield running


@pytest.fixture(scope="module")
def link(guest: Guest) -> Iterator[Link]:
    made, _ = link_to(guest)
    yield made
    made.close()


@pytest.fixture
async def async_link(guest: Guest) -> AsyncIterator[AsyncLink]:
    async for made in async_link_to(guest):
        yield made


@pytest.fixture(scope="module")
def processes(link: Link) -> Processes:
    return Processes(link, SANDBOX)


def run(link: Link, command: object, **options: object):  # type: ignore[no-untyped-def]
    return link.drive(ExecFlows(SANDBOX, link.patience)._exec(command, **options))  # type: ignore[arg-type]


def free_port() -> int:
    """Below the ports that connections take for their own end, or one of them may have it when the server binds it."""
    while True:
        number = random.randrange(10_000, 30_000)
        with socket.socket() as found, suppress(OSError):
            found.bind(("127.0.0.1", number))
            return number


def test_exec_gives_a_result(link: Link) -> None:
    result = run(link, "echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert not result.ok
    with pytest.raises(ExecFailed, match="exited with code 3: err"):
        result.raise_for_error()
    assert run(link, ["printf", "%s|", "a b", "*"]).raise_for_error().stdout == "a b|*|"


def test_exec_tells_of_output_while_it_comes(link: Link) -> None:
    """e2b-dev/E2B#1259: callbacks were not awaited by the wait; TanStack/ai#807: they were never called."""
    out: list[str] = []
    result = run(link, "echo one; sleep 0.2; printf 'é'; sleep 0.1", on_stdout=out.append)
    assert "".join(out) == result.stdout == "one\né"


def test_exec_waits_for_long_ones(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloche._processes.WAIT_S", 0.1)
    assert run(link, "sleep 0.5; echo done").stdout == "done\n"


def test_exec_options(link: Link, guest: Guest) -> None:
    assert (
        run(link, "cat; pwd; echo $A", input=b"\x00\xff", cwd="/usr", env={"A": "b"}).stdout_bytes == b"\0\xff/usr\nb\n"
    )
    assert run(link, "tty <&1 && stty size <&1", tty=Tty(cols=70, rows=20)).stdout.endswith("20 70\r\n")
    timed = run(link, "sleep 100", timeout_s=0.2)
    assert (timed.timed_out, timed.signal, timed.ok) == (True, "SIGTERM", False)
    short = run(link, "seq 1 100000", max_output_bytes=100)
    assert short.truncated
    assert re.search(r"\n\[\d+ bytes omitted\]\n", short.stdout)
    background = run(link, "sleep 100 & echo up")
    assert background.stdout == "up\n"
    link.drive(Processes(link, SANDBOX).get(background.process_id)._delete())


def test_what_cannot_start_raises(link: Link, processes: Processes) -> None:
    with pytest.raises(ProcessStartFailed) as error:
        run(link, ["no-such-program"])
    assert error.value.details["reason"] == "not_found"
    with pytest.raises(ProcessStartFailed, match="/nope"):
        processes.start("true", cwd="/nope")
    with pytest.raises(InvalidRequest):
        processes.start([])
    with pytest.raises(InvalidRequest, match=r"argv: .* list"):
        processes.start(5)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="over the"):
        run(link, "cat", input=b"x" * 5_000_000)


def test_a_process_from_start_to_exit(processes: Processes) -> None:
    process = processes.start("cat; echo err >&2; exit 4", stdin="open", name="cat")
    process.write("one\n")
    process.write(b"\xff\n", close=True)
    exited = process.wait_for_exit(timeout_s=60)
    assert exited.code == 4
    output = process.output()
    assert (output.stdout_bytes, output.stderr, output.missed_bytes) == (b"one\n\xff\n", "err\n", 0)
    again = processes.get(process.id)
    assert again.info.name == "cat"
    assert process.id in [listed.id for listed in processes.list()]
    process.delete()
    with pytest.raises(NotFound):
        processes.get("proc-zzzzzzzzzzzz")


@pytest.mark.parametrize("ended", [False, True])
def test_input_that_meets_a_closed_client_is_news_only_while_the_program_runs(
    guest: Guest, capsys: pytest.CaptureFixture[str], ended: bool
) -> None:
    """The command line closes its client when the program has ended, and its thread may just be closing the input."""
    link, _ = link_to(guest)
    process = Processes(link, SANDBOX).start("cat", stdin="open")
    over = threading.Event()
    if ended:
        over.set()
    reading, writing = os.pipe()
    os.close(writing)
    link.close()
    pass_input(process, reading, over)
    os.close(reading)
    assert ("input was cut short" in capsys.readouterr().err) is not ended


SIZES = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
print("up", flush=True)
while signal.sigwait([signal.SIGWINCH]):
    print(*os.get_terminal_size(1), flush=True)
"""


def test_a_terminal_gets_another_size(processes: Processes) -> None:
    process = processes.start([PYTHON, "-c", SIZES], tty=Tty(cols=70, rows=20), stdin="open")
    process.wait_for_log("up")
    assert process.resize(90, 31).tty == Tty(cols=90, rows=31)
    process.wait_for_log("90 31")
    with pytest.raises(InvalidRequest):
        process.resize(0, 31)
    process.delete()


def test_waits(processes: Processes) -> None:
    port = free_port()
    code = f"import http.server; print('serving é', flush=True); http.server.HTTPServer(('127.0.0.1', {port}), "
    code += "http.server.SimpleHTTPRequestHandler).serve_forever()"
    process = processes.start([PYTHON, "-c", code])
    assert process.wait_for_log(re.compile(r"SERVING (.)", re.IGNORECASE)).groups == ["é"]
    process.wait_for_port(port)
    process.wait_for_port(port, protocol="http", path="/", status=(200, 200))
    with pytest.raises(WaitTimeout, match="HTTP status 404"):
        process.wait_for_port(port, protocol="http", path="/nothing", timeout_s=3)
    with pytest.raises(WaitTimeout):
        process.wait_for_log("serving", from_now=True, timeout_s=0.2)
    results = process.wait_for(LogCondition(pattern="never"), PortCondition(port=port), mode="any")
    assert [result.met for result in results] == [False, True]
    with pytest.raises(WaitTimeout):
        process.wait_for_exit(timeout_s=0.1)
    process.kill(grace_s=60)
    assert process.wait_for_exit().signal == "SIGTERM"
    with pytest.raises(ProcessEnded, match="was ended by SIGTERM"):
        process.wait_for_port(port)


def test_what_was_met_in_an_earlier_call_counts(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloche._process.WAIT_S", 0.1)
    process = processes.start("echo first; sleep 0.4; head -c 20000000 /dev/zero; echo second; exec sleep 100")
    results = process.wait_for(LogCondition(pattern="first"), LogCondition(pattern="second"), timeout_s=30)
    assert all(result.met for result in results)
    process.kill()


def test_a_program_that_does_not_read_is_said(processes: Processes) -> None:
    process = processes.start("exec sleep 100", stdin="open")
    began = time.monotonic()
    with pytest.raises(WaitTimeout) as error:
        process.write(b"x" * 3_000_000, timeout_s=1.5)
    written = error.value.details["written"]
    assert isinstance(written, int)
    assert 1_000_000 < written < 3_000_000
    assert time.monotonic() - began < 120
    process.kill()


def test_services(link: Link) -> None:
    services = Services(link, SANDBOX)
    made = services.declare("s", "exec sleep 100", ready=None, restart={"when": "always", "max_restarts": 3})
    assert made.restart.max_restarts == 3
    assert [service.name for service in services.list()] == ["s"]
    assert services.restart("s").name == "s"
    assert services.get("s").process_id is not None
    services.delete("s")
    with pytest.raises(NotFound):
        services.get("s")


async def test_the_same_asynchronously(async_link: AsyncLink) -> None:
    processes = AsyncProcesses(async_link, SANDBOX)
    process = await processes.start("read x; echo got $x", stdin="open")
    await process.write("it\n")
    assert (await process.wait_for_log("got")).text == "got"
    assert (await process.wait_for_exit()).code == 0
    kinds = [event.type async for event in process.events()]
    assert kinds == ["started", "stdout", "exited", "finished"]
    await process.wait_for(ExitCondition())
    shown = await processes.start([PYTHON, "-c", SIZES], tty=Tty(), stdin="open")
    await shown.wait_for_log("up")
    assert (await shown.resize(90, 31)).tty == Tty(cols=90, rows=31)
    await shown.wait_for_log("90 31")
    await shown.delete()
    flow = ExecFlows(SANDBOX, async_link.patience)
    seen: list[str] = []

    async def on_stdout(text: str) -> None:
        seen.append(text)

    assert (await async_link.drive(flow._exec("echo a", on_stdout=on_stdout))).ok
    assert seen == ["a\n"]


@pytest.mark.timeout(TIME_S)
def test_no_byte_is_lost_or_repeated_however_often_the_connection_breaks(guest: Guest) -> None:
    """Hundreds of cuts while binary and text are written. CLOCHE_TEST_FLOOD_MB=200 is the long form."""
    output = MixedOutput()
    link, transport = link_to(guest, cut_bytes=180_000 if FLOOD_MB <= 8 else 1_500_000, seed=3)
    process = Processes(link, SANDBOX).start(output.command(PYTHON), stdin="open")
    output.read(process)
    if FLOOD_MB <= 8:
        output.read(process)  # now from the journal
    link.close()
    assert transport.cuts > 200


def test_a_flood_beyond_the_bounds_is_an_explicit_gap_with_the_right_count(guest: Guest) -> None:
    link, transport = link_to(guest, cut_bytes=400_000, seed=4)
    process = Processes(link, SANDBOX).start(["head", "-c", "200000000", "/dev/zero"])
    size = missed = 0
    for event in process.events():
        if event.type == "stdout":
            size += len(output_bytes(event))
        elif event.type == "gap":
            count = event.data["bytes"]
            assert isinstance(count, int)
            missed += count
    link.close()
    assert size + missed == 200_000_000
    assert transport.cuts > 10


def test_input_arrives_once_however_often_the_answer_is_lost(guest: Guest) -> None:
    link, transport = link_to(guest, lose=0.4, seed=5)
    process = Processes(link, SANDBOX).start("sha256sum", stdin="open")
    whole = b""
    for n in range(40):
        data = bytes([n]) * (n * 997)
        whole += data
        process.write(data)
    process.write(b"end", close=True)
    whole += b"end"
    assert process.wait_for_exit().code == 0
    assert process.output().stdout.split()[0] == hashlib.sha256(whole).hexdigest()
    assert transport.lost > 10
    link.close()


def test_an_exec_runs_once_however_often_the_answer_is_lost(guest: Guest) -> None:
    link, transport = link_to(guest, lose=0.5, seed=6)
    for n in range(20):
        assert run(link, f"echo {n} >> ran").ok
    assert transport.lost > 5
    link.close()
    assert (guest.home / "ran").read_text().split() == [str(n) for n in range(20)]


def test_a_server_that_is_gone_is_said(guest: Guest) -> None:
    link, _ = link_to(guest, lose=1.0)
    link.patience = type(link.patience)(window_s=0.05)
    with pytest.raises(ConnectionFailed):
        Processes(link, SANDBOX).start("true")
    link.close()
