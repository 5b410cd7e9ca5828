"""sudo without setuid: a small client asks the guest, which is root already, to start the command.

gVisor runs no setuid programs, and without them ``no_new_privs`` can hold for every process of every sandbox. So the
image's ``sudo`` (`client.py`) hands its arguments and its three standard descriptors to the guest over a Unix socket,
passes signals on, and ends as the command did. See docs/decisions/0003-sudo.md.
"""

from cloche_guest.sudo._broker import SudoBroker

__all__ = ["SudoBroker"]
