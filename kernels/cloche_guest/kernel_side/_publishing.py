"""The thread that publishes, and never overlooks a subscriber."""

# Most of ipykernel has no annotations.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

import zmq
from ipykernel.iostream import IOPubThread


class PublishingThread(IOPubThread):
    """A ZMQ descriptor is edge-triggered, and a send may eat the edge of a subscription that has just come. Stock ipykernel
    then welcomes the subscriber at the next event, which may never come: the guest waits for that welcome."""

    def _really_send(self, msg: Any, *args: Any, **kwargs: Any) -> None:
        super()._really_send(msg, *args, **kwargs)
        stream = self._xpub_stream
        if int(stream.socket.events) & zmq.POLLIN:
            self.io_loop.add_callback(lambda: stream._handle_events(stream.socket, 0))
