"""The interactive shell of a kernel, where a service must differ from a notebook.

* Forked children that reach the end of a cell end there; in a notebook they become a second kernel that spins at 100
  % CPU (jupyter/notebook#3106).
* ``exit`` and ``quit`` end the cell like ``sys.exit()``; in a notebook they end the kernel and with it all variables.
* The environment is not told to force colours: output is read by programs as often as by people.
"""

# Most of ipykernel has no annotations.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import os
import sys
import traceback
import warnings
from typing import Any

from ipykernel.zmqshell import ZMQInteractiveShell


class KernelShell(ZMQInteractiveShell):
    """See the module."""

    def __init__(self, **kwargs: Any) -> None:
        self._kernel_pid = os.getpid()
        super().__init__(**kwargs)

    def init_environment(self) -> None:
        os.environ.setdefault("PAGER", "cat")
        os.environ.setdefault("GIT_PAGER", "cat")

    def ask_exit(self) -> None:
        raise SystemExit(0)

    async def run_cell_async(self, *args: Any, **kwargs: Any) -> Any:
        result = await super().run_cell_async(*args, **kwargs)
        if os.getpid() != self._kernel_pid:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(_exit_code(result))
        return result

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        if os.getpid() == self._kernel_pid:
            super()._showtraceback(etype, evalue, stb)
        elif not isinstance(evalue, SystemExit):
            # The sockets belong to the parent process; the child has only its descriptors.
            print("".join(traceback.format_exception(evalue)), file=sys.stderr)


def _exit_code(result: Any) -> int:
    error = result.error_before_exec or result.error_in_exec
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    return int(error is not None)


def silence_hints() -> None:
    """IPython tells people at a terminal how to leave it after every SystemExit."""
    warnings.filterwarnings("ignore", message="To exit: use 'exit', 'quit', or Ctrl-D")
