"""What all models share: unknown fields are rejected, models are immutable, ids and names have one grammar."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

Item = TypeVar("Item", bound=BaseModel)

SandboxId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{20}$")]
"""20 lower-case letters and digits: ids stand in host names, and E2B's clients demand exactly this."""

ContextId = Annotated[str, StringConstraints(pattern=r"^(default|ctx-[a-z0-9]{12})$")]
"""``default`` is the context every sandbox has from its first use on; it runs Python."""

RunId = Annotated[str, StringConstraints(pattern=r"^run-[a-z0-9]{12}$")]
KeyId = Annotated[str, StringConstraints(pattern=r"^key-[a-z0-9]{12}$")]
WatchId = Annotated[str, StringConstraints(pattern=r"^watch-[a-z0-9]{12}$")]

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$")]
"""Free names: a letter or digit first, then letters, digits, ``_``, ``.``, ``-``; at most 63."""

MAX_STRING_BYTES = 131_071
"""Linux' own limit for one argument or one ``NAME=VALUE`` of a program, without the zero at its end (MAX_ARG_STRLEN)."""


def at_most(limit: int) -> AfterValidator:
    """For text that may have ``limit`` bytes as UTF-8; ``max_length`` counts characters."""

    def check(text: str) -> str:
        if (size := len(text.encode())) > limit:
            raise ValueError(f"it has {size} bytes; the limit is {limit}")
        return text

    return AfterValidator(check)


MAX_ENV_NAME = 256
MAX_ENV_VALUE_BYTES = MAX_STRING_BYTES - MAX_ENV_NAME - len("=")

EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=MAX_ENV_NAME)]
EnvValue = Annotated[
    str, StringConstraints(max_length=MAX_ENV_VALUE_BYTES, pattern=r"^[^\x00]*$"), at_most(MAX_ENV_VALUE_BYTES)
]

Env = Annotated[dict[EnvName, EnvValue], Field(max_length=1024)]

LabelKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_./-]{0,62}$")]
LabelValue = Annotated[str, StringConstraints(max_length=256)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=64)]
"""Labels select (`labels=` in lists); metadata is only carried."""

Timestamp = AwareDatetime
"""ISO 8601 with an offset; the server always sends UTC."""


class Model(BaseModel):
    """Base of every model on the wire.

    A validator is built when a model is first used, a millisecond each; so a default that is a model is made by
    ``model_construct``, which needs none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Page(Model, Generic[Item]):
    """One page of a list, newest first. ``next_page`` is passed as ``page`` to get the rest; null at the end."""

    items: list[Item]
    next_page: str | None = None
