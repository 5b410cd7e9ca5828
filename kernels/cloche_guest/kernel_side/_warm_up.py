"""One cell that nobody sees: it takes the page faults and the imports of a first cell.

The guest sends it like any other cell, so it goes every way that a cell goes. Afterwards the shell is as it was: counters,
`In` and `Out`, `_` and its like, the last result. Hooks that code has registered do not run for it. Only names that IPython
itself writes are put back: a thread of the user may write others meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_ABSENT = object()


@contextmanager
def without_trace(shell: Any) -> Iterator[None]:
    """Run one cell in here."""
    put_back = [*_names(shell), *_attributes(shell), *_lists(shell.history_manager)]
    callbacks, shell.events.callbacks = shell.events.callbacks, {event: [] for event in shell.events.callbacks}
    transformers, shell.ast_transformers = shell.ast_transformers, []
    try:
        yield
    finally:
        shell.events.callbacks, shell.ast_transformers = callbacks, transformers
        for put in put_back:
            put()


def _names(shell: Any) -> Iterator[Callable[[], None]]:
    """In every dictionary that a cell writes."""
    count, history = shell.execution_count, shell.history_manager
    names = ("_", "__", "___", "_i", "_ii", "_iii", f"_i{count}", f"_{count}")
    written = [(namespace, name) for namespace in (shell.user_ns, shell.user_ns_hidden) for name in names]
    records = (history.output_hist, history.output_hist_reprs, history.outputs, history.exceptions)
    for namespace, name in [*written, *((record, count) for record in records)]:
        yield _entry(namespace, name, namespace.get(name, _ABSENT))


def _attributes(shell: Any) -> Iterator[Callable[[], None]]:
    written = {
        shell: ("execution_count", "last_execution_succeeded", "last_execution_result"),
        shell.displayhook: ("_", "__", "___", "exec_result"),
        shell.history_manager: ("_i", "_ii", "_iii", "_i00"),
        shell.logger: ("log_active",),
    }
    for owner, names in written.items():
        for name in names:
            yield _attribute(owner, name, getattr(owner, name))
    shell.logger.log_active = False  # %logstart


def _lists(history: Any) -> Iterator[Callable[[], None]]:
    for kept in (history.input_hist_parsed, history.input_hist_raw, history.db_input_cache):
        yield _end(kept, len(kept))


def _entry(namespace: dict[Any, Any], name: Any, value: object) -> Callable[[], None]:
    if value is _ABSENT:
        return lambda: namespace.pop(name, None)
    return lambda: namespace.update({name: value})


def _attribute(owner: Any, name: str, value: object) -> Callable[[], None]:
    return lambda: setattr(owner, name, value)


def _end(kept: list[Any], length: int) -> Callable[[], None]:
    def cut() -> None:
        del kept[length:]

    return cut
