"""Questions that are answered while a cell runs: complete, inspect, variables.

They come on the control channel, whose thread is never busy with user code. Each is answered by a thread of its own,
because completion may run code of the user (``__dir__``, ``__getattr__``) that never returns: such a thread is lost,
but the control channel and the other questions go on. At most `MAX_THREADS` may be lost.
"""

# Most of ipykernel has no annotations.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from ipykernel.jsonutil import json_clean

from ._digests import digest_variables
from ._variables import list_variables

MAX_THREADS = 8
_COMPLETION_LOCK_S = 2.0
"""Jedi is not safe for threads, so completions wait for each other; but not for one that hangs."""


Answer = Callable[[dict[str, Any]], dict[str, Any]]
"""Content of a question to content of its reply."""


class Inspector:
    """Answers questions about the kernel's namespace, and whatever `answers` has."""

    def __init__(self, kernel: Any, answers: Mapping[str, Answer]) -> None:
        self._kernel = kernel
        self._slots = threading.BoundedSemaphore(MAX_THREADS)
        self._completing = threading.Lock()
        self._answers: dict[str, Answer] = {
            **answers,
            "cloche_complete_request": self._complete,
            "cloche_inspect_request": self._inspect,
            "cloche_variables_request": self._variables,
            "cloche_digests_request": self._digests,
        }

    def install(self) -> None:
        """Register the questions as messages of the control channel."""
        for message_type in self._answers:
            self._kernel.control_handlers[message_type] = self._on_request

    async def _on_request(self, stream: Any, identity: Any, parent: dict[str, Any]) -> None:
        if not self._slots.acquire(blocking=False):
            self._send(stream, identity, parent, _error("Busy", f"{MAX_THREADS} questions have not been answered yet"))
            return
        threading.Thread(target=self._answer, args=(stream, identity, parent), daemon=True).start()

    def _answer(self, stream: Any, identity: Any, parent: dict[str, Any]) -> None:
        try:
            answer = self._answers[parent["header"]["msg_type"]](parent["content"])
            content = {"status": "ok", **answer}
        except Exception as error:
            content = _error(type(error).__name__, str(error))
        finally:
            self._slots.release()
        stream.io_loop.add_callback(self._send, stream, identity, parent, content)

    def _send(self, stream: Any, identity: Any, parent: dict[str, Any], content: dict[str, Any]) -> None:
        reply = parent["header"]["msg_type"].replace("_request", "_reply")
        self._kernel.session.send(stream, reply, json_clean(content), parent, identity)

    def _complete(self, content: dict[str, Any]) -> dict[str, Any]:
        locked = self._completing.acquire(timeout=_COMPLETION_LOCK_S)
        try:
            return dict(self._kernel.do_complete(content["code"], content["cursor_pos"]))
        except Exception:
            # IPython's completer stumbles over text that is hardly code (a lone U+0085, say). Nothing completes it.
            at = content["cursor_pos"]
            return {"matches": [], "cursor_start": at, "cursor_end": at, "metadata": {}}
        finally:
            if locked:
                self._completing.release()

    def _inspect(self, content: dict[str, Any]) -> dict[str, Any]:
        return dict(self._kernel.do_inspect(content["code"], content["cursor_pos"], content["detail_level"]))

    def _variables(self, _: dict[str, Any]) -> dict[str, Any]:
        return list_variables(self._kernel.shell.user_ns, self._kernel.shell.user_ns_hidden)

    def _digests(self, _: dict[str, Any]) -> dict[str, Any]:
        return digest_variables(self._kernel.shell.user_ns, self._kernel.shell.user_ns_hidden)


def _error(name: str, value: str) -> dict[str, Any]:
    return {"status": "error", "ename": name, "evalue": value[:2000]}
