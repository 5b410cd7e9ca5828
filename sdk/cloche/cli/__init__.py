"""``cloche``: the command line. Commands are imported when they are used; see `cloche.cli._app` for their list."""

from __future__ import annotations

import sys

from cloche.cli._app import cloche
from cloche.cli._failures import run_command


def main() -> None:
    """Entry point of the ``cloche`` script."""
    sys.exit(run_command(cloche))
