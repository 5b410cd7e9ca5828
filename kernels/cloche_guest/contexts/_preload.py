"""What a zygote imports, and which kernels it can become. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

DATA_STACK: Final = ("numpy", "pandas", "matplotlib.pyplot")
"""Imported beforehand as soon as one kernel has: 0.5 s each time otherwise. Other libraries start threads, take devices or
read settings when they are imported; whoever wants them says so."""

OWN_MODULE: Final = "cloche_kernel.app"
"""Half of what a kernel imports by itself, for a zygote that has no kernel to ask."""

_READ_AT_IMPORT: Final = re.compile(
    r"PYTHON|LD_|LC_|LANG(UAGE)?$|MALLOC_|GLIBC_|HOME$"
    r"|(GOTO|OPENBLAS|OMP|MKL|BLIS|VECLIB|NUMEXPR|NPY|NUMPY|PANDAS|ARROW|MPL|MATPLOTLIB)_|MPL"
)


_READ_AT_START: Final = re.compile(r"(IPYTHON|JUPYTER|JPY|XDG|TRAITLETS|CONDA|PYDEVD|DEBUGPY)_?|VIRTUAL_ENV$")


def differs_at_import(zygote: Mapping[str, str], kernel: Mapping[str, str]) -> list[str]:
    """Variables that Python, the C library or a library reads when it starts, and that the two have different values of.
    A kernel with such cannot be forked: it would go on with the zygote's."""
    names = {name for name in (*zygote, *kernel) if _READ_AT_IMPORT.match(name)}
    return sorted(name for name in names if zygote.get(name) != kernel.get(name))


def differs_at_start(spare: Mapping[str, str], kernel: Mapping[str, str]) -> list[str]:
    """As `differs_at_import`, and what IPython and Jupyter read when a kernel starts."""
    names = {name for name in (*spare, *kernel) if _READ_AT_IMPORT.match(name) or _READ_AT_START.match(name)}
    return sorted(name for name in names if spare.get(name) != kernel.get(name))


def wanted_modules(own: list[str], asked: set[str]) -> list[str]:
    """What a kernel imports by itself, and what kernels here were seen to use."""
    return [*own, *(name for name in DATA_STACK if name in asked)]
