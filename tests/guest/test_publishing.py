"""The thread of a kernel that publishes."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import zmq
from jupyter_client.session import Session

from cloche_guest.kernel_side._publishing import PublishingThread

WAIT_MS = 30_000


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    yield made
    made.destroy(linger=0)


def test_a_subscriber_that_comes_while_something_is_sent_is_welcomed(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    """The send took the edge of the descriptor with it, the welcome never came, and the kernel counted as not started."""
    publisher = context.socket(zmq.XPUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    thread = PublishingThread(publisher, pipe=False, session=Session(key=b"key"))  # type: ignore[no-untyped-call]
    thread.start()  # type: ignore[no-untyped-call]
    subscriber = context.socket(zmq.SUB)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"")
    subscriber.connect(f"tcp://127.0.0.1:{port}")
    assert subscriber.poll(WAIT_MS)
    subscriber.recv_multipart()
    try:
        _send_while_it_subscribes(thread, publisher, subscriber)
        assert subscriber.poll(WAIT_MS)
        assert subscriber.recv_multipart()[0] == b"topic"
    finally:
        subscriber.close(linger=0)
        _stop(thread)


def _send_while_it_subscribes(
    thread: PublishingThread, publisher: zmq.Socket[bytes], subscriber: zmq.Socket[bytes]
) -> None:
    busy, go = threading.Event(), threading.Event()

    def hold() -> None:
        busy.set()
        go.wait(WAIT_MS / 1000)
        publisher.poll(WAIT_MS)  # the subscription is there, and its edge is gone
        thread._really_send([b"of a cell"])

    thread.schedule(hold)  # type: ignore[no-untyped-call]
    busy.wait(WAIT_MS / 1000)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"topic")
    go.set()
    assert subscriber.poll(WAIT_MS)
    assert subscriber.recv_multipart() == [b"of a cell"]


def _stop(thread: PublishingThread) -> None:
    cancelled = threading.Event()

    def cancel() -> None:
        assert thread._event_pipe_gc_task is not None
        thread._event_pipe_gc_task.cancel()
        thread.io_loop.call_later(0, cancelled.set)

    thread.io_loop.add_callback(cancel)
    assert cancelled.wait(WAIT_MS / 1000)
    thread.stop()  # type: ignore[no-untyped-call]
    thread._event_puller.socket.close(linger=0)
    thread.close()  # type: ignore[no-untyped-call]
