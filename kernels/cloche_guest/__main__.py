"""``python -m cloche_guest [--listen 127.0.0.1:PORT]``"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from cloche_guest.config import take_config
from cloche_guest.daemon import serve
from cloche_guest.identity import first_identity


def main() -> None:
    """Run the guest; exit code 2 for settings that cannot be used."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if sys.argv[1:]:
        os.environ["CLOCHE_GUEST_LISTEN"] = _listen_argument()
    try:
        config = take_config(os.environ, is_root=os.geteuid() == 0)
    except ValueError as error:
        sys.exit(f"cloche_guest: {error}")
    identity = first_identity(config, dict(os.environ))
    # The first model would look for plugins in the metadata of every package. Nobody else sees this: what the guest starts
    # has the environment of `identity`.
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "1"
    asyncio.run(serve(config, identity))


def _listen_argument() -> str:
    import argparse  # noqa: PLC0415  # half a megabyte, and a guest in a sandbox has no arguments

    parser = argparse.ArgumentParser(prog="cloche_guest", description="the daemon inside every Cloche sandbox")
    parser.add_argument("--listen", required=True, help="serve on 127.0.0.1:PORT instead of dialling the server")
    return str(parser.parse_args().listen)


if __name__ == "__main__":
    main()
