"""Small pure parts: settings, failures, leftovers, history, kept runs, variables."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cloche.errors import Gone, InvalidRequest, NotFound
from cloche.models import HistoryEntry, RunCreate, RunStatus
from cloche_guest.children import ExitStatus
from cloche_guest.config import Account, base_environment, take_config
from cloche_guest.contexts._failure import explain_exit, explain_ours, read_oom_kills, signal_name
from cloche_guest.contexts._history import MAX_CODE_CHARS, HistoryLog
from cloche_guest.contexts._leftovers import ProcessFacts, members, read_processes
from cloche_guest.contexts._run import MIB, RunRecord
from cloche_guest.contexts._runs import MAX_FINISHED, Runs, new_id
from cloche_guest.kernel_side._variables import list_variables
from cloche_guest.streams import close_reason


def test_settings_are_taken_out_of_the_environment() -> None:
    environ = {
        "CLOCHE_SANDBOX_ID": "s",
        "CLOCHE_EPOCH": "e",
        "CLOCHE_UPLINK_TOKEN": "secret",
        "CLOCHE_ENV": '{"A": "b"}',
        "CLOCHE_GUEST_LISTEN": "127.0.0.1:80",
        "PATH": "/bin",
    }
    config = take_config(environ, is_root=False)
    assert (config.sandbox_id, config.epoch, config.token) == ("s", "e", "secret")
    assert (config.env, config.listen, config.account) == ({"A": "b"}, ("127.0.0.1", 80), None)
    assert environ == {"PATH": "/bin"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CLOCHE_ENV", "not json"),
        ("CLOCHE_ENV", "[]"),
        ("CLOCHE_ENV", '{"A": 1}'),
        ("CLOCHE_GUEST_LISTEN", "0.0.0.0:80"),
        ("CLOCHE_GUEST_LISTEN", "127.0.0.1:x"),
        ("CLOCHE_GUEST_USER", "no-such-user"),
    ],
)
def test_settings_that_cannot_be_used_are_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=name):
        take_config({name: value}, is_root=True)


def test_the_environment_names_the_user_that_kernels_run_as() -> None:
    env = base_environment({"HOME": "/root", "LANG": "x"}, Account(1000, 1000, "/home/user", "user"))
    assert (env["HOME"], env["USER"], env["LANG"]) == ("/home/user", "user", "x")
    assert base_environment({"HOME": "/root"}, None)["HOME"] == "/root"


def test_out_of_memory_is_said_only_when_it_is_known() -> None:
    killed = ExitStatus(signal=signal.SIGKILL)
    assert explain_exit(killed, oom_kills=1, log_tail="").reason == "out_of_memory"
    unknown = explain_exit(killed, oom_kills=0, log_tail="")
    assert (unknown.reason, unknown.signal) == ("signal", "SIGKILL")
    assert "memory is the usual cause" in unknown.message
    assert explain_exit(ExitStatus(signal=signal.SIGSEGV), oom_kills=1, log_tail="").reason == "signal"
    assert explain_exit(ExitStatus(code=3), oom_kills=0, log_tail="a\nb").message.endswith("a\nb")
    assert explain_ours("deleted").reason == "deleted"
    assert signal_name(42) == "SIG42"
    assert read_oom_kills() >= 0


def test_a_crash_dump_is_cut_to_where_it_happened() -> None:
    log = "noise\nFatal Python error: Segmentation fault\n" + "\n".join(f"line {number}" for number in range(50))
    message = explain_exit(ExitStatus(signal=11), oom_kills=0, log_tail=log).message
    assert "Segmentation fault\nline 0" in message
    assert "noise" not in message
    assert "line 20" not in message


def test_members_are_found_by_parent_session_and_mark() -> None:
    kernel = 100
    processes = [
        ProcessFacts(100, 1, 100, "m"),
        ProcessFacts(101, 100, 100, None),  # child
        ProcessFacts(102, 101, 102, None),  # grandchild in a session of its own
        ProcessFacts(103, 1, 103, "m"),  # forked twice, own session: only the mark is left
        ProcessFacts(104, 1, 100, None),  # orphan in the kernel's session
        ProcessFacts(200, 1, 200, "other"),
        ProcessFacts(201, 200, 200, None),
        ProcessFacts(os.getpid(), 1, 5, "m"),  # never ourselves
    ]
    assert members(processes, kernel, "m") == {101, 102, 103, 104}


def test_proc_is_read() -> None:
    me = next(process for process in read_processes() if process.pid == os.getpid())
    assert me.parent == os.getppid()
    assert me.session == os.getsid(0)


def entry(code: str) -> HistoryEntry:
    return HistoryEntry(generation=1, execution_count=1, run_id=None, code=code)


def test_history_is_bounded_by_count_and_by_size() -> None:
    log = HistoryLog()
    for number in range(1100):
        log.add(entry(str(number)))
    assert [item.code for item in log.newest(2)] == ["1098", "1099"]
    assert len(log.newest(5000)) == 1000
    log.add(entry("x" * (MAX_CODE_CHARS - 10)))
    log.add(entry("y" * 20))
    assert [item.code[0] for item in log.newest(5000)] == ["y"]


async def test_finished_runs_are_kept_within_both_bounds() -> None:
    runs = Runs()

    def finished(size: int) -> RunRecord:
        run = RunRecord(new_id("run-"), "default", RunCreate(code=""))
        runs.add(run)
        run.add_text("stdout", "x" * size)
        run.finish(RunStatus.OK, None, 0.0)
        runs.has_finished(run)
        return run

    waiting = RunRecord(new_id("run-"), "default", RunCreate(code=""))
    runs.add(waiting)
    first = finished(10)
    for _ in range(MAX_FINISHED):
        finished(10)
    with pytest.raises(Gone):
        runs.get(first.id)
    assert runs.get(waiting.id) is waiting
    big = [finished(7 * MIB) for _ in range(10)]
    with pytest.raises(Gone, match="64 MiB"):
        runs.get(big[0].id)
    assert runs.get(big[-1].id) is big[-1]
    with pytest.raises(NotFound):
        runs.get("run-000000000000")


def test_a_close_reason_fits_into_its_frame() -> None:
    for size in (1, 100, 5000):
        reason = close_reason(InvalidRequest("é" * size))
        assert len(reason.encode()) <= 123
        assert "invalid_request" in reason


class _Array:
    """Stands for numpy.ndarray where numpy is not installed."""

    shape, dtype, nbytes = (3, 4), "float64", 96

    def __len__(self) -> int:
        return 3

    def __repr__(self) -> str:
        return "array([[1.],\n       [2.]])"


class _Frame:
    shape, columns = (2, 2), ("a", "b")

    def __len__(self) -> int:
        return 2

    def memory_usage(self, deep: bool) -> int:
        assert not deep
        return 160


_Array.__module__, _Array.__qualname__ = "numpy", "ndarray"
_Frame.__module__, _Frame.__name__, _Frame.__qualname__ = "pandas.core.frame", "DataFrame", "DataFrame"


def described(value: Any) -> dict[str, Any]:
    [facts] = list_variables({"value": value}, {})["variables"]
    return dict(facts)


def test_arrays_and_frames_have_shape_dtype_and_size() -> None:
    array = described(_Array())
    assert (array["type"], array["shape"], array["dtype"]) == ("numpy.ndarray", [3, 4], "float64")
    assert (array["length"], array["size_bytes"], array["summary"]) == (3, 96, "array([[1.], [2.]])")
    frame = described(_Frame())
    assert (frame["type"], frame["shape"], frame["size_bytes"]) == ("pandas.core.frame.DataFrame", [2, 2], 160)
    assert frame["summary"] == "2 rows x 2 columns: a, b"


@pytest.mark.parametrize(
    ("value", "summary"),
    [
        ((1,), "(1,)"),
        ({"a": [1, {2}]}, "{'a': [1, {2}]}"),
        (set(), "set()"),
        (frozenset({1}), "frozenset({1})"),
        ([[[[1]]]], "[[[[…]]]]"),
        (list(range(100)), "[" + ", ".join(map(str, range(20))) + ", …]"),
        (b"x", "b'x'"),
        (10**1000, "<int of 3322 bits>"),
        (int, "<class int>"),
        (Path, "<class pathlib.Path>"),
        (len, "<function len>"),
    ],
)
def test_summaries_are_bounded(value: object, summary: str) -> None:
    assert described(value)["summary"] == summary


def test_hidden_names_are_not_listed_unless_they_were_changed() -> None:
    namespace = {"In": [], "exit": 1, "_x": 1, "mine": 1}
    listed = list_variables(namespace, {"In": namespace["In"], "exit": object()})["variables"]
    assert [facts["name"] for facts in listed] == ["exit", "mine"]
