"""The kernel application: sockets with back-pressure, a word when it is ready, nothing it does not need."""

# Most of ipykernel has no annotations.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import zmq
from ipykernel.kernelapp import IPKernelApp
from traitlets.config import Config

from . import _sandbox_module
from ._kernel import ClocheKernel
from ._limits import apply_limits, be_killed_before_the_guest, die_with_the_guest
from ._output import KernelStream
from ._process_environment import Shown
from ._publishing import PublishingThread
from ._shell import silence_hints
from ._spare import OWN_SETTINGS, Spare, has_own_settings

SEND_QUEUE = 64
"""Messages that may wait in the socket. With XPUB_NODROP a full queue makes the sender wait instead of losing
messages."""


class ClocheKernelApp(IPKernelApp):
    """ipykernel's application with three sockets fewer worries: see each method."""

    @property
    def blocking_class(self) -> Any:  # type: ignore[override]  # written by nobody
        """Named by the base class, which so imports all of jupyter_client (see `_late_package`); for its clients only."""
        return importlib.import_module("jupyter_client").BlockingKernelClient

    def parse_command_line(self, argv: Any = None) -> None:
        """There is none; making the parser for it takes a quarter of a forked kernel's start."""
        self.extra_args = []

    def init_iopub(self, context: Any) -> None:
        """As the base class, with a socket that never drops (stock ipykernel loses output to a reader that stalls)."""
        socket = context.socket(zmq.XPUB)
        socket.linger = 1000
        socket.setsockopt(zmq.SNDHWM, SEND_QUEUE)
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        self.iopub_port = self._bind_socket(socket, self.iopub_port)
        self.configure_tornado_logger()
        self.iopub_thread = PublishingThread(socket, pipe=True, session=self.session)
        self.iopub_thread.start()
        self.iopub_socket = self.iopub_thread.background_socket

    def init_heartbeat(self) -> None:
        """None: the guest is the parent process and learns of the death of a kernel from Linux."""

    def log_connection_info(self) -> None:
        """Only keep the ports; the base class prints how to connect a second client."""
        self._ports = {"shell": self.shell_port, "iopub": self.iopub_port, "stdin": self.stdin_port}

    def init_io(self) -> None:
        """Crash dumps go to the real stderr, which the guest reads: the captured one dies with the process."""
        self._crash_log = os.fdopen(os.dup(2), "w")
        faulthandler.enable(self._crash_log, all_threads=False)
        super().init_io()


def main(connection_file: str, options_text: str, shown: Shown | None) -> None:
    """Run a kernel until it is told to end. Options: ``limits``; ``ready_fd``, which gets one byte when it is ready;
    ``life_fd`` of a kernel that was forked: a pipe that ends with the guest; ``spare``: it waits for an order."""
    options = json.loads(options_text)
    if options.get("life_fd") is None:
        die_with_the_guest()
        be_killed_before_the_guest()
    if options.get("spare") and has_own_settings():
        sys.exit(OWN_SETTINGS)
    apply_limits(options["limits"])
    silence_hints()
    _sandbox_module.install()
    app = ClocheKernelApp.instance(config=_config(connection_file))
    app.initialize([])
    app.kernel.has_started(options.get("life_fd"))
    _await_order(app.kernel, options, shown)
    os.write(options["ready_fd"], b"1")
    os.close(options["ready_fd"])
    app.start()


def _await_order(kernel: ClocheKernel, options: Mapping[str, Any], shown: Shown | None) -> None:
    if options.get("spare") and shown is not None:
        Spare(kernel, options["packages"], shown).install()


def _config(connection_file: str) -> Config:
    config = Config()
    config.IPKernelApp.connection_file = connection_file
    config.IPKernelApp.kernel_class = ClocheKernel
    config.IPKernelApp.outstream_class = f"{KernelStream.__module__}.{KernelStream.__name__}"
    config.IPythonKernel._execute_sleep = 0.0  # flush() waits until the text is sent, so there is nothing to wait for
    config.HistoryManager.enabled = False  # the guest keeps the history; SQLite costs 5 ms at every start
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.banner1 = ""
    return config
