"""``python -m cloche_guest [--listen 127.0.0.1:PORT]``"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import sys

from cloche_guest.config import take_config
from cloche_guest.daemon import serve
from cloche_guest.identity import first_identity


def main() -> None:
    """Run the guest; exit code 2 for settings that cannot be used."""
    parser = argparse.ArgumentParser(prog="cloche_guest", description="the daemon inside every Cloche sandbox")
    parser.add_argument("--listen", help="serve on 127.0.0.1:PORT instead of dialling the server")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if arguments.listen:
        os.environ["CLOCHE_GUEST_LISTEN"] = arguments.listen
    try:
        config = take_config(os.environ, is_root=os.geteuid() == 0)
    except ValueError as error:
        sys.exit(f"cloche_guest: {error}")
    asyncio.run(serve(config, first_identity(config, dict(os.environ))))


if __name__ == "__main__":
    main()
