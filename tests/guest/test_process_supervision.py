"""The pure parts of processes: when one is over, when a service comes back, when a wait is decided, what an exec shows."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.journal import Gap, Journal, split_bytes
from cloche.models import Data, ProcessExit, RestartPolicy
from cloche_guest.processes._capture import capped, capture
from cloche_guest.processes._conditions import Outcome, Verdict, judge
from cloche_guest.processes._restarting import in_row, restart_delay_s
from cloche_guest.processes._supervision import HELD_S, LINGER_S, Decision, Facts, Step, decide, poll_pause_s
from cloche_guest.processes._tree import signal_number

RUNNING = Facts(started_at=100.0)
EXITED = replace(RUNNING, exited_at=110.0)


@pytest.mark.parametrize(
    ("facts", "now", "decision"),
    [
        (RUNNING, 200.0, Decision(Step.WAIT)),
        (replace(RUNNING, timeout_s=5), 104.0, Decision(Step.WAIT, until=105.0)),
        (replace(RUNNING, timeout_s=5), 105.0, Decision(Step.TERMINATE)),
        (replace(RUNNING, timeout_s=5, terminated=True, kill_at=107.0), 106.0, Decision(Step.WAIT, until=107.0)),
        (replace(RUNNING, timeout_s=5, terminated=True, kill_at=107.0), 107.0, Decision(Step.KILL)),
        (replace(RUNNING, timeout_s=5, terminated=True, kill_at=107.0, killed=True), 108.0, Decision(Step.WAIT)),
        (replace(RUNNING, root_gone=True), 101.0, Decision(Step.LOSE)),
        (replace(EXITED, root_gone=True, drained=True, group_empty_at=110.0), 110.0, Decision(Step.FINISH)),
        (EXITED, 110.0, Decision(Step.WAIT, until=110.0 + LINGER_S)),
        (EXITED, 110.0 + LINGER_S, Decision(Step.LINGER)),
        (replace(EXITED, lingered=True, drained=True), 1e6, Decision(Step.WAIT)),
        (replace(EXITED, timeout_s=5, lingered=True), 1e6, Decision(Step.WAIT)),
        (replace(EXITED, lingered=True, group_empty_at=111.0), 111.5, Decision(Step.WAIT, until=111.0 + HELD_S)),
        (replace(EXITED, group_empty_at=111.0), 111.0 + HELD_S, Decision(Step.FINISH, held=True)),
        (replace(EXITED, lingered=True, kill_at=112.0), 112.0, Decision(Step.KILL)),
    ],
)
def test_decisions(facts: Facts, now: float, decision: Decision) -> None:
    assert decide(facts, now) == decision


TIMES = st.floats(min_value=0, max_value=1000)


@given(
    st.builds(
        Facts,
        started_at=TIMES,
        timeout_s=st.none() | TIMES,
        exited_at=st.none() | TIMES,
        root_gone=st.booleans(),
        drained=st.booleans(),
        group_empty_at=st.none() | TIMES,
        terminated=st.booleans(),
        kill_at=st.none() | TIMES,
        killed=st.booleans(),
        lingered=st.booleans(),
    ),
    TIMES,
)
def test_a_process_is_never_finished_without_an_exit_and_always_goes_on(facts: Facts, now: float) -> None:
    decision = decide(facts, now)
    if decision.step is Step.FINISH:
        assert facts.exited_at is not None
        assert facts.group_empty_at is not None
        assert facts.drained or (decision.held and now >= facts.group_empty_at + facts.held_s)
    if decision.step is Step.LOSE:
        assert facts.exited_at is None
    if decision.step is Step.WAIT and decision.until is not None:
        assert decision.until > now


def test_polls_become_rarer() -> None:
    assert poll_pause_s(0) < 0.01
    assert poll_pause_s(0.1) < poll_pause_s(0.5) <= poll_pause_s(100) == 0.25


@pytest.mark.parametrize(
    ("when", "exit_status", "count", "delay"),
    [
        ("never", ProcessExit(code=1), 0, None),
        ("on_failure", ProcessExit(code=0), 0, None),
        ("on_failure", ProcessExit(code=1), 0, 1.0),
        ("on_failure", ProcessExit(signal="SIGKILL"), 1, 2.0),
        ("on_failure", None, 2, 4.0),
        ("always", ProcessExit(code=0), 3, 5.0),
        ("always", ProcessExit(code=0), 4, None),
        ("always", ProcessExit(code=0), 10**6, None),
    ],
)
def test_restarts(when: str, exit_status: ProcessExit | None, count: int, delay: float | None) -> None:
    policy = RestartPolicy.model_validate({"when": when, "max_restarts": 4, "delay_s": 1, "max_delay_s": 5})
    assert restart_delay_s(policy, exit_status, count) == delay


def test_a_program_that_was_up_for_long_counts_anew() -> None:
    assert (in_row(7, 59.0), in_row(7, 60.0)) == (7, 0)


@pytest.mark.parametrize(
    ("mode", "outcomes", "verdict"),
    [
        ("all", "MM", Verdict.MET),
        ("all", "MO", Verdict.OPEN),
        ("all", "FO", Verdict.IMPOSSIBLE),
        ("all", "MF", Verdict.IMPOSSIBLE),
        ("any", "FM", Verdict.MET),
        ("any", "FO", Verdict.OPEN),
        ("any", "FF", Verdict.IMPOSSIBLE),
        ("any", "OO", Verdict.OPEN),
    ],
)
def test_judgement(mode: str, outcomes: str, verdict: Verdict) -> None:
    names = {"M": Outcome.MET, "O": Outcome.OPEN, "F": Outcome.FAILED}
    assert judge(mode, [names[letter] for letter in outcomes]) is verdict  # type: ignore[arg-type]


@given(st.binary(max_size=400), st.integers(2, 100))
def test_a_capped_output_adds_up(data: bytes, cap: int) -> None:
    shown = capped(data, b"", len(data), cap)
    head, tail = shown.data.to_bytes(), shown.tail.to_bytes()
    assert len(head) + len(tail) + shown.omitted_bytes == shown.total_bytes == len(data)
    assert data.startswith(head)
    assert data.endswith(tail)
    assert len(head) + len(tail) <= max(cap, len(data) if len(data) <= cap else cap)
    assert (shown.omitted_bytes == 0) == (len(data) <= cap)


@given(st.text(st.characters(exclude_characters="\0"), max_size=300), st.integers(8, 60))
def test_text_that_is_cut_stays_text(text: str, cap: int) -> None:
    data = text.encode("utf-8", "replace")
    shown = capped(data, b"", len(data), cap)
    assert shown.data.base64 is None
    assert shown.tail.base64 is None


@given(
    st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(min_size=1, max_size=50)), max_size=60),
    st.integers(2, 300),
)
def test_an_exec_shows_heads_and_tails_of_what_the_journal_kept(chunks: list[tuple[str, bytes]], cap: int) -> None:
    journal = Journal("e", max_bytes=300, head_bytes=200, record_bytes=64)
    totals = {"stdout": 0, "stderr": 0}
    whole = {"stdout": b"", "stderr": b""}
    for kind, data in chunks:
        journal.append(kind, data, split=split_bytes)
        totals[kind] += len(data)
        whole[kind] += data
    items = journal.read(journal.start, max_records=10_000)
    for kind, shown in capture(items, totals, cap).items():
        head, tail = shown.data.to_bytes(), shown.tail.to_bytes()
        assert whole[kind].startswith(head)
        assert whole[kind].endswith(tail)
        assert len(head) + len(tail) + shown.omitted_bytes == len(whole[kind])
        if not any(isinstance(item, Gap) for item in items) and len(whole[kind]) <= cap:
            assert head == whole[kind]


@given(st.binary(max_size=200))
def test_bytes_in_json_are_exact(data: bytes) -> None:
    assert Data.model_validate_json(Data.of(data).model_dump_json()).to_bytes() == data


@pytest.mark.parametrize(("name", "number"), [("TERM", 15), ("SIGKILL", 9), (1, 1), ("RTMIN+2", 36)])
def test_signal_numbers(name: str | int, number: int) -> None:
    assert signal_number(name) == number


@pytest.mark.parametrize("name", ["NOPE", "TERM+1", "RTMIN+40", "SIG"])
def test_no_such_signal(name: str) -> None:
    with pytest.raises(ValueError, match="there is no signal"):
        signal_number(name)
