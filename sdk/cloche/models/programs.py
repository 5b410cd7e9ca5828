"""What processes and terminals run: the same two words in both."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from cloche.models._base import MAX_STRING_BYTES, Model, at_most

Argument = Annotated[
    str, StringConstraints(max_length=MAX_STRING_BYTES, pattern=r"^[^\x00]*$"), at_most(MAX_STRING_BYTES)
]


class Program(Model):
    """``argv``, or ``shell`` for a line that ``/bin/bash -c`` (``/bin/sh`` where there is none) reads."""

    argv: list[Argument] | None = Field(
        default=None, min_length=1, max_length=8192, description="program and arguments"
    )
    shell: Argument | None = Field(default=None, min_length=1, description="a line for a shell, instead of argv")

    @model_validator(mode="after")
    def _not_both(self) -> Self:
        if self.argv is not None and self.shell is not None:
            raise ValueError("give argv or shell, not both")
        if self.argv is not None and not self.argv[0]:
            raise ValueError("argv[0] is empty")
        return self
