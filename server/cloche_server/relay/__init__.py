"""The relay: calls and streams between clients and guests."""

from cloche_server.relay._exchange import Exchange, ExchangeError
from cloche_server.relay._guest import (
    CHECKED_BYTES,
    STREAM_SILENCE_S,
    GuestAnswer,
    GuestCall,
    answer_error,
    as_our_errors,
    call_guest,
    check_json,
    printable,
)
from cloche_server.relay._guest_socket import GuestSocket, open_guest_socket
from cloche_server.relay._upload import GuestUpload

__all__ = [
    "CHECKED_BYTES",
    "STREAM_SILENCE_S",
    "Exchange",
    "ExchangeError",
    "GuestAnswer",
    "GuestCall",
    "GuestSocket",
    "GuestUpload",
    "answer_error",
    "as_our_errors",
    "call_guest",
    "check_json",
    "open_guest_socket",
    "printable",
]
