"""What may work in a sandbox, for the `ActivityMeter`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from cloche_guest.activity import Tree, Worker
from cloche_guest.contexts import ContextService
from cloche_guest.processes import ProcessService
from cloche_guest.terminals.service import TerminalService


def worker_sources(
    contexts: ContextService, processes: ProcessService, terminals: TerminalService
) -> Sequence[Callable[[], Iterable[Worker]]]:
    """All of them."""
    return (lambda: _contexts(contexts), lambda: _processes(processes), lambda: _terminals(terminals))


def _contexts(contexts: ContextService) -> Iterator[Worker]:
    for context in contexts.all():
        kind = "run" if context.works else "context"
        yield Worker(f"{kind}:{context.id}", context.works, context.worked_at, _tree(context.tree))


def _processes(processes: ProcessService) -> Iterator[Worker]:
    """Services wait for others to ask them; whoever asks is work of its own."""
    for process in processes.all():
        if process.service is None:
            tree = None if process.is_over else _tree(process.tree)
            yield Worker(f"process:{process.id}", False, process.worked_at, tree)


def _terminals(terminals: TerminalService) -> Iterator[Worker]:
    for terminal in terminals.all():
        yield Worker(f"terminal:{terminal.id}", False, terminal.worked_at, _tree(terminal.tree))


def _tree(found: tuple[int, str] | None) -> Tree | None:
    return Tree(*found) if found is not None else None
