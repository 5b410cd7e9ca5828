"""Entry point: ``<kernel python> launch.py <connection file> <options as JSON>`` for a kernel, and
``<kernel python> launch.py --zygote <descriptor of its socket>``.

Loads the directory it lies in as package ``cloche_kernel`` without leaving a trace in ``sys.path``, so that user code
never imports a module of ours by accident.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys


def _load_package() -> None:
    directory = os.path.dirname(os.path.abspath(__file__))
    spec = importlib.util.spec_from_file_location(
        "cloche_kernel", os.path.join(directory, "__init__.py"), submodule_search_locations=[directory]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{directory} is not a package")
    package = importlib.util.module_from_spec(spec)
    sys.modules["cloche_kernel"] = package
    spec.loader.exec_module(package)
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != directory]


def _main() -> None:
    _load_package()
    importlib.import_module("cloche_kernel.postponed").postpone()
    arguments = sys.argv[1:]
    shown = None
    if arguments[0] == "--zygote":
        order = importlib.import_module("cloche_kernel.zygote").serve(int(arguments[1]))
        arguments, shown = [order.connection_file, order.options], order.shown  # from here on this is a kernel
    importlib.import_module("cloche_kernel.app").main(*arguments, shown)


if __name__ == "__main__":
    _main()
