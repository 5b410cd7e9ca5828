"""What the guest has imported when it says hello: it is part of every cold start, and of every sandbox' memory."""

from __future__ import annotations

import subprocess
import sys

NOT_BEFORE_HELLO = (
    "argparse",
    "cloche.models.lifecycle",
    "cloche.models.sandboxes",
    "cloche.models.snapshots",
    "cloche.models.templates",
    "cloche_guest.files.worker",
    "httpx",
    "ipykernel",
    "IPython",
    "jupyter_client",
    "sqlite3",
    "unittest",
)


def test_the_guest_imports_nothing_that_it_does_not_need_for_hello() -> None:
    code = f"import cloche_guest.__main__, sys; print([name for name in {NOT_BEFORE_HELLO} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_no_model_is_built_before_one_is_used() -> None:
    code = """
import cloche_guest.__main__, pydantic
def all_of(model):
    yield model
    for below in model.__subclasses__():
        yield from all_of(below)
print([model.__name__ for model in all_of(pydantic.BaseModel) if model.__pydantic_complete__ and model.model_fields])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
