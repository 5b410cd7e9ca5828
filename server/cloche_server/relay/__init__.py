"""The relay: calls and streams between clients and guests."""

from cloche_server.relay._guest import (
    CHECKED_BYTES,
    STREAM_SILENCE_S,
    GuestAnswer,
    GuestCall,
    call_guest,
    check_json,
    printable,
)
from cloche_server.relay._guest_socket import GuestSocket, open_guest_socket

__all__ = [
    "CHECKED_BYTES",
    "STREAM_SILENCE_S",
    "GuestAnswer",
    "GuestCall",
    "GuestSocket",
    "call_guest",
    "check_json",
    "open_guest_socket",
    "printable",
]
