"""The HTTP server that serves the guest's routes on any stream."""

from __future__ import annotations

import socket
from typing import Any

from tornado import httpserver, iostream, web

from cloche_guest.http import HANG_UP_BYTES


class GuestServer(httpserver.HTTPServer):
    """HTTP on accepted and on dialled connections alike."""

    def handle_stream(self, stream: iostream.IOStream, address: Any) -> None:
        # One that was dialled may have been closed since, with all others, and has no socket any more.
        if not stream.closed() and stream.socket.family in (socket.AF_INET, socket.AF_INET6):
            stream.set_nodelay(True)  # without it, Nagle and delayed ACKs cost 40 ms an answer
        super().handle_stream(stream, address)


def make_server(app: web.Application) -> GuestServer:
    """Idle connections are kept. Bodies are collected, and bounded, by the handlers."""
    return GuestServer(app, max_body_size=HANG_UP_BYTES)
