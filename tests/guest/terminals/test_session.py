"""The session's rules, one by one, and the whole protocol over a network that breaks anywhere."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloche._terminal_stream import Discarded, Gap, Output, Reset, TerminalStream
from cloche.models.terminals import Ack, Hello, Resize, Resync, TakeControl, TerminalExit, Visible, client_message
from cloche.terminal_frames import Frame, FrameType, decode_frame
from cloche_guest.terminals.actions import Close, Repaint, SetSize, WriteInput
from cloche_guest.terminals.log import Dimensions, OutputLog
from cloche_guest.terminals.session import IN_ACK_BYTES, PAUSE_BYTES, STALL_S, TerminalSession

SMALL = Dimensions(80, 24)
K = 1024


def new_session(**budgets: int) -> TerminalSession:
    return TerminalSession("e1", OutputLog(SMALL, **budgets))


def hello(number: int = 1, **fields: Any) -> Hello:
    return Hello(client=f"client-{number:04}", **fields)


def drain(session: TerminalSession, key: int, now: float = 0) -> list[Any]:
    """Everything there is for a client; frames as (type, offset, payload)."""
    found: list[Any] = []
    while messages := session.pull(key, now):
        for message in messages:
            if isinstance(message, bytes):
                frame = decode_frame(message)
                found.append((frame.type, frame.offset, frame.payload))
            else:
                found.append(json.loads(message))
    return found


def of_type(messages: list[Any], kind: str) -> list[Any]:
    return [message for message in messages if isinstance(message, dict) and message["type"] == kind]


def output_of(messages: list[Any]) -> bytes:
    return b"".join(m[2] for m in messages if isinstance(m, tuple) and m[0] is FrameType.OUTPUT)


def typed(offset: int, data: bytes) -> Frame:
    return Frame(FrameType.INPUT, offset, data)


def test_attach_resume_and_replay() -> None:
    session = new_session()
    session.output(b"hello", 0)
    session.attach(1, hello(), may_write=True, now=0)
    first = drain(session, 1)
    assert first[0]["mode"] == "replay"
    assert output_of(first) == b"hello"
    session.detach(1, 0)
    session.output(b" world", 0)
    session.attach(2, hello(epoch="e1", have=3), may_write=True, now=0)
    again = drain(session, 2)
    assert (again[0]["mode"], again[0]["start"], again[0]["lost"]) == ("resume", 3, 0)
    assert output_of(again) == b"lo world"


@pytest.mark.parametrize("have", [{"epoch": "other", "have": 3}, {"epoch": "e1", "have": 99}, {"have": 3}])
def test_a_foreign_epoch_and_an_offset_beyond_the_head_are_a_reset(have: dict[str, Any]) -> None:
    """QwenLM/qwen-code#4510: a restarted server looked caught up."""
    session = new_session()
    session.output(b"hello", 0)
    session.attach(1, hello(**have), may_write=True, now=0)
    assert drain(session, 1)[0]["mode"] == "replay"


def test_a_query_in_the_backlog_is_answered_exactly_once() -> None:
    """terminado#247, jupyterlab#17179, vscode#123803: replayed queries were answered into the shell."""
    session = new_session()
    session.output(b"\x1b[6n", 0)
    session.attach(1, hello(), may_write=True, now=0)
    assert drain(session, 1)[0]["live_from"] == 0  # nobody has seen it: the first one answers
    session.detach(1, 0)
    session.attach(2, hello(2), may_write=True, now=0)
    assert drain(session, 2)[0]["live_from"] == 4


def test_a_second_viewer_answers_nothing_until_it_is_in_control() -> None:
    session = new_session()
    session.attach(1, hello(1), may_write=True, now=0)
    drain(session, 1)
    session.output(b"\x1b[c", 0)
    session.attach(2, hello(2), may_write=True, now=0)
    welcome = drain(session, 2)[0]
    assert (welcome["role"], welcome["live_from"]) == ("viewer", 3)
    drain(session, 1)
    session.receive(2, TakeControl(), 0)
    assert of_type(drain(session, 2), "role") == [{"type": "role", "role": "controller", "live_from": 3}]
    assert of_type(drain(session, 1), "role")[0]["role"] == "viewer"


def test_the_last_one_that_typed_controls_and_sets_the_size() -> None:
    session = new_session()
    session.attach(1, hello(1, cols=100, rows=30), may_write=True, now=0)
    session.attach(2, hello(2, cols=60, rows=20), may_write=True, now=0)
    assert session.take_actions() == [SetSize(Dimensions(100, 30))]
    session.receive(2, Resize(cols=61, rows=21), 0)
    assert session.take_actions() == []
    session.input(2, typed(0, b"x"), 0)
    assert session.take_actions() == [SetSize(Dimensions(61, 21)), WriteInput("client-0002", b"x")]
    session.receive(1, Resize(cols=99, rows=29), 0)
    assert session.log.size == Dimensions(61, 21)


def test_control_passes_on_when_the_controller_leaves() -> None:
    session = new_session()
    session.attach(1, hello(1), may_write=True, now=0)
    session.attach(2, hello(2), may_write=False, now=0)
    session.attach(3, hello(3), may_write=True, now=0)
    session.detach(1, 0)
    assert [session.role(2), session.role(3)] == ["read_only", "controller"]


def test_a_read_only_client_can_neither_type_nor_take_control_nor_resize() -> None:
    session = new_session()
    session.attach(1, hello(cols=10, rows=10), may_write=False, now=0)
    session.input(1, typed(0, b"rm -rf /\n"), 0)
    session.receive(1, TakeControl(), 0)
    session.receive(1, Resize(cols=10, rows=10), 0)
    assert session.take_actions() == []
    assert len(of_type(drain(session, 1), "error")) == 2


def test_the_ghost_of_the_same_client_is_closed_and_its_control_taken_over() -> None:
    """opensandbox#996: a second connection was refused until the dead one timed out."""
    session = new_session()
    session.attach(1, hello(1), may_write=True, now=0)
    session.attach(2, hello(1), may_write=True, now=0)
    assert session.take_actions() == [Close(1, 4001, "taken over by a newer connection")]
    assert session.role(2) == "controller"


def test_input_is_written_once() -> None:
    session = new_session()
    session.attach(1, hello(), may_write=True, now=0)
    session.input(1, typed(0, b"abc"), 0)
    session.detach(1, 0)
    session.attach(2, hello(), may_write=True, now=0)
    assert drain(session, 2)[0]["in_off"] == 3
    session.input(2, typed(0, b"abcde"), 0)
    assert session.take_actions() == [WriteInput("client-0001", b"abc"), WriteInput("client-0001", b"de")]
    session.written("client-0001", 5)
    session.tick(0.25)
    assert drain(session, 2) == [{"type": "in_ack", "off": 5}]
    session.tick(0.5)
    assert drain(session, 2) == []


def test_an_echo_is_one_message_and_much_input_is_acknowledged_at_once() -> None:
    session = new_session()
    session.attach(1, hello(), may_write=True, now=0)
    drain(session, 1)
    session.input(1, typed(0, b"x"), 0)
    assert session.written("client-0001", 1) is False
    session.output(b"x", 0)
    assert len(session.pull(1, 0)) == 1
    session.input(1, typed(1, b"y" * IN_ACK_BYTES), 0)
    assert session.written("client-0001", IN_ACK_BYTES) is True
    assert drain(session, 1) == [{"type": "in_ack", "off": 1 + IN_ACK_BYTES}]


def test_input_that_is_sent_again_is_acknowledged_again() -> None:
    session = new_session()
    session.attach(1, hello(), may_write=True, now=0)
    session.input(1, typed(0, b"x"), 0)
    session.written("client-0001", 1)
    session.tick(0.25)
    drain(session, 1)
    session.input(1, typed(0, b"x"), 0.3)
    assert drain(session, 1) == [{"type": "in_ack", "off": 1}]


def test_input_with_a_hole_or_without_end_ends_the_connection() -> None:
    session = new_session()
    session.attach(1, hello(1), may_write=True, now=0)
    session.input(1, typed(5, b"x"), 0)
    assert [action.code for action in session.take_actions() if isinstance(action, Close)] == [1008]
    session.attach(2, hello(2), may_write=True, now=0)
    for number in range(17):
        session.input(2, typed(number * 16 * K, b"y" * 16 * K), 0)
    assert [action.code for action in session.take_actions() if isinstance(action, Close)] == [1008]


def test_no_more_than_a_window_is_sent_ahead() -> None:
    session = new_session()
    session.attach(1, hello(window=64 * K), may_write=True, now=0)
    session.output(b"x" * 300 * K, 0)
    assert len(output_of(drain(session, 1))) == 64 * K
    session.receive(1, Ack(off=10 * K), 0)
    assert len(output_of(drain(session, 1))) == 10 * K


def test_an_ack_of_what_was_never_sent_ends_the_connection() -> None:
    session = new_session()
    session.attach(1, hello(), may_write=True, now=0)
    session.receive(1, Ack(off=1), 0)
    assert isinstance(session.take_actions()[0], Close)


def test_a_slow_viewer_holds_the_program_a_frozen_one_only_for_five_seconds() -> None:
    session = new_session()
    session.attach(1, hello(), may_write=True, now=0)
    drain(session, 1)
    session.output(b"x" * (PAUSE_BYTES + 1), 0)
    assert session.paused
    session.tick(STALL_S - 0.1)
    assert session.paused
    session.tick(STALL_S + 0.1)
    assert not session.paused
    session.output(b"x" * 8 * K * K, 6)
    session.receive(1, Ack(off=0), 20)  # it is back, and what it missed is gone
    welcome = of_type(drain(session, 1), "welcome")
    assert welcome[-1]["mode"] == "replay"
    assert welcome[-1]["lost"] > 0


def test_who_holds_nobody_up_is_never_frozen() -> None:
    """Acks wait for silence or 64 KiB. A key held down has neither, and its echo stood still every half second."""
    session = new_session()
    session.attach(1, hello(), may_write=True, now=0)
    drain(session, 1)
    for n in range(600):
        now = n / 30
        session.input(1, typed(n, b"x"), now)
        session.output(b"x", now)
        session.tick(now)
        assert drain(session, 1), f"no echo after {now:.1f} s"


def test_a_frozen_viewer_does_not_keep_the_answer_from_one_who_types() -> None:
    session = new_session()
    session.attach(1, hello(1), may_write=True, now=0)
    session.attach(2, hello(2), may_write=True, now=0)
    drain(session, 1)
    drain(session, 2)
    session.output(b"x" * (PAUSE_BYTES + 1), 0)
    for client in (1, 2):
        session.pull(client, 0, PAUSE_BYTES)
    while drain(session, 2):
        session.receive(2, Ack(off=session._clients[2].place.offset), 0.1)
    session.tick(0.7)
    assert session.paused
    session.input(2, typed(0, b"\x03"), 0.8)
    session.tick(0.9)
    assert not session.paused


def test_nobody_looks_so_nothing_is_held() -> None:
    session = new_session()
    session.output(b"x" * 10 * K * K, 0)
    assert not session.paused
    session.attach(1, hello(visible=False), may_write=True, now=0)
    session.output(b"x" * K * K, 1)
    assert not session.paused


def test_time_ends_nothing() -> None:
    """2witstudios/PageSpace#1723: a terminal without output was taken for dead; superradcompany/microsandbox#1339: it was
    ended after ten minutes without input."""
    session = new_session()
    session.attach(1, hello(), may_write=True, now=0)
    session.output(b"$ ", 0)
    drain(session, 1)
    session.take_actions()
    for minute in range(7 * 24 * 60):
        session.tick(minute * 60.0)
    assert (session.take_actions(), drain(session, 1)) == ([], [])
    session.input(1, typed(0, b"x"), 604_800)
    assert [action.data for action in session.take_actions() if isinstance(action, WriteInput)] == [b"x"]


def test_a_client_that_catches_up_with_a_backlog_does_not_hold_the_program() -> None:
    session = new_session()
    session.output(b"x" * 3 * K * K, 0)
    session.attach(1, hello(), may_write=True, now=0)
    session.output(b"y", 0)
    assert not session.paused


def test_a_client_that_was_outrun_holds_the_program_from_then_on() -> None:
    session = new_session()
    session.output(b"x" * 3 * K * K, 0)
    session.attach(1, hello(), may_write=True, now=0)
    drain(session, 1)
    session.output(b"x" * 5 * K * K, 0)
    assert not session.paused
    session.receive(1, Ack(off=K), 0)
    assert of_type(drain(session, 1), "welcome")[0]["mode"] == "replay"
    session.output(b"x", 0)
    assert session.paused


def test_a_hidden_client_gets_a_sign_only_and_resumes_when_shown() -> None:
    session = new_session()
    session.attach(1, hello(), may_write=True, now=0)
    drain(session, 1)
    session.receive(1, Visible(on=False), 0)
    session.output(b"news", 1)
    assert drain(session, 1, 10) == [{"type": "activity", "off": 4}]
    session.output(b"more", 10.5)
    assert drain(session, 1, 10.6) == []
    session.receive(1, Visible(on=True), 20)
    assert output_of(drain(session, 1, 20)) == b"newsmore"


def test_after_lost_output_a_full_screen_program_is_made_to_draw_anew() -> None:
    """rustdesk#14377, jupyterlab#12073; Ctrl-L would go to the program (agentrove#628)."""
    session = new_session(alternate_bytes=100 * K)
    session.output(b"$ vim\x1b[?1049h", 0)
    session.output(b"x" * 300 * K, 0)
    session.attach(1, hello(), may_write=True, now=0)
    assert Repaint(SMALL) in session.take_actions()
    messages = drain(session, 1)
    lag = of_type(messages, "lag")[0]
    assert lag["start"] == 5
    assert (FrameType.PREAMBLE, lag["end"], b"\x1b[?1049h") in messages
    session.detach(1, 0)
    session.attach(2, hello(epoch="e1", have=session.log.head), may_write=True, now=0)
    assert session.take_actions() == []


def test_the_exit_comes_after_the_last_output_also_in_a_replay() -> None:
    session = new_session()
    session.output(b"last words", 0)
    session.ended(TerminalExit(code=3), 0)
    session.attach(1, hello(), may_write=True, now=0)
    messages = drain(session, 1)
    assert messages[-1] == {"type": "exit", "off": 10, "code": 3, "signal": None}
    assert messages[-2] == (FrameType.OUTPUT, 0, b"last words")
    assert not of_type(messages, "welcome")[0]["alive"]
    assert session.take_actions() == [Close(1, 1000, "the program ended")]


def test_resync_replays_all() -> None:
    session = new_session()
    session.output(b"abc", 0)
    session.attach(1, hello(), may_write=True, now=0)
    drain(session, 1)
    session.receive(1, Resync(), 0)
    assert output_of(drain(session, 1)) == b"abc"


class Network:
    """A client and a session, and a connection between them that loses what is on the way when it breaks."""

    def __init__(self, budget: int) -> None:
        self.session = new_session(normal_bytes=budget)
        self.stream = TerminalStream("client-0001")
        self.now = 0.0
        self.key = 0
        self.to_client: list[str | bytes] = []
        self.to_guest: list[str | bytes] = []
        self.output = bytearray()
        self.received = bytearray()
        self.typed = bytearray()
        self.written = bytearray()
        self.lost_input = 0

    def connect(self) -> None:
        self.cut()
        self.key += 1
        self.session.attach(self.key, client_message.validate_json(self.stream.hello()), may_write=True, now=self.now)  # type: ignore[arg-type]

    def cut(self) -> None:
        self.stream.lost(self.now)
        self.session.detach(self.key, self.now)
        self.to_client, self.to_guest = [], []

    def move(self, client: int, guest: int) -> None:
        """So many messages arrive on each side."""
        self.to_client += self.session.pull(self.key, self.now, 500)
        for message in self.to_client[:client]:
            for event in self.stream.receive(message, self.now):
                self.take(event)
        del self.to_client[:client]
        self.to_guest += self.stream.to_send(quiet=True)
        for message in self.to_guest[:guest]:
            if isinstance(message, bytes):
                self.session.input(self.key, decode_frame(message), self.now)
            else:
                self.session.receive(self.key, client_message.validate_json(message), self.now)
        del self.to_guest[:guest]
        for action in self.session.take_actions():
            if isinstance(action, WriteInput):
                self.written += action.data
                self.session.written(action.client, len(action.data))

    def take(self, event: object) -> None:
        match event:
            case Output(offset, data):
                if offset + len(data) > len(self.received):
                    assert offset <= len(self.received), "a hole nobody spoke of"
                    self.received += data[len(self.received) - offset :]
                self.stream.took(event.end)
            case Gap(start, end):
                self.missing(start, end)
            case Reset(start=start):
                self.missing(len(self.received), start)
            case Discarded(count):
                self.lost_input += count

    def missing(self, start: int, end: int) -> None:
        """A gap with the right count: fill it with what was really put out, so that all compares equal in the end."""
        assert start <= max(len(self.received), start)
        self.received += self.output[len(self.received) : end]


@settings(max_examples=80)
@given(st.lists(st.tuples(st.sampled_from("ooomtc"), st.binary(min_size=1, max_size=900), st.integers(0, 9))))
def test_no_byte_is_lost_or_doubled_whatever_the_network_does(steps: list[tuple[str, bytes, int]]) -> None:
    network = Network(budget=64 * 1024)
    network.connect()
    for what, data, number in steps:
        network.now += number / 10
        if what == "o":
            network.output += data
            network.session.output(data, network.now)
        elif what == "t":
            network.typed += data[:20]
            network.stream.type(data[:20])
        elif what == "c":
            network.connect()
        network.move(number, 9 - number)
    network.connect()
    for _ in range(400):
        network.move(10, 10)
    assert network.received == network.output
    assert network.lost_input == 0
    assert network.written == network.typed


def test_a_client_that_is_gone_for_long_gets_a_gap_with_the_right_count() -> None:
    network = Network(budget=128 * 1024)
    network.connect()
    for round_ in range(30):
        for number in range(200):
            line = b"%d.%d \xff\xfe\x1b[3%dm" % (round_, number, number % 8)
            network.output += line
            network.session.output(line, network.now)
        if round_ % 10 == 0:
            big = bytes(range(256)) * 1024
            network.output += big
            network.session.output(big, network.now)
            network.connect()
        network.move(1000, 1000)
    for _ in range(1000):
        network.move(10, 10)
    assert network.received == network.output
