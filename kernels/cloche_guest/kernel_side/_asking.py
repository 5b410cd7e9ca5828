"""``input()`` and ``getpass()`` in a run that nobody answers: said in words that help whoever wrote the code."""

# Most of ipykernel has no annotations.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from typing import Any

from ipykernel.ipkernel import IPythonKernel
from IPython.core.error import StdinNotImplementedError


class AskingKernel(IPythonKernel):
    """ipykernel speaks of a frontend that does not support input requests."""

    def raw_input(self, prompt: object = "") -> Any:
        self._check_stdin("input()")
        return super().raw_input(prompt)

    def getpass(self, *args: Any, **kwargs: Any) -> Any:
        self._check_stdin("getpass()")
        return super().getpass(*args, **kwargs)

    def _check_stdin(self, what: str) -> None:
        if not self._allow_stdin:
            raise StdinNotImplementedError(
                f"{what} was called, and nobody can answer: the run was made without allow_stdin"
                " (in Python: run(code, input=...); `cloche run` asks when it has a terminal)"
            )
