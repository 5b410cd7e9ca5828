"""A kernel whose sandbox has become another one: new environment, new seeds, and the hooks of the user.

The message comes on the control channel, whose thread is never busy with user code, so environment and seeds change
while a cell runs, too. Or it comes with a cell, before its code; also by both ways: each change is taken on once. Hooks are
user code and run in the main thread: at once when it is idle, else when the cell has
ended and before the next one begins.
"""

# Most of ipykernel has no annotations.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from ._environment import Environment
from ._sandbox_module import call_back, has_callbacks, tell_of_callbacks
from ._seeding import seed_generators, stir_openssl

REPLY = "cloche_identity_reply"

HOOKS_S = 1.0
"""The answer waits so long for the hooks; they go on."""


class Rebirth:
    """One for each kernel. `run_hooks` is called around every cell."""

    def __init__(self, kernel: Any, environment: Environment) -> None:
        self._kernel = kernel
        self._environment = environment
        self._waiting: list[tuple[str, str, threading.Event]] = []
        self._taking = threading.Lock()
        self._once = ""

    def install(self) -> None:
        """Register the message, and say so when there are hooks: a change must not wait for a cell then."""
        self._kernel.control_handlers["cloche_identity_request"] = self._on_request
        tell_of_callbacks(lambda: self._kernel.session.send(self._kernel.iopub_socket, "cloche_hooks", {}))

    def take_on(self, content: Mapping[str, Any]) -> threading.Event | None:
        """The event is set when the hooks have run. None: nothing is left to do."""
        with self._taking:
            if content["once"] and content["once"] == self._once:
                return None
            self._once = content["once"]
            self._environment.change(content["set"], content["unset"])
            stir_openssl()
            if content["seed"]:
                seed_generators(bytes.fromhex(content["seed"]))
            if not has_callbacks() and not self._kernel.is_executing:
                # Nothing is left for the main thread. Without this a claim cost two more threads' wake-ups, and one new thread.
                return None
            done = threading.Event()
            self._waiting.append((content["reason"] or "", content["sandbox_id"], done))
            return done

    def rehearse(self, content: Mapping[str, Any]) -> None:
        """`take_on`, of a change of nothing. Hooks would believe it."""
        if not has_callbacks():
            self.take_on(content)

    def run_hooks(self) -> None:
        """In the main thread, between cells."""
        while self._waiting:
            reason, sandbox_id, done = self._waiting.pop(0)
            call_back(reason, sandbox_id)
            done.set()

    async def _on_request(self, stream: Any, identity: Any, parent: dict[str, Any]) -> None:
        done = self.take_on(parent["content"])
        if done is None:
            self._kernel.session.send(stream, REPLY, {"status": "ok", "hooks_ran": True}, parent, identity)
            return
        self._kernel.io_loop.add_callback(self._run_hooks_when_idle)
        threading.Thread(target=self._answer, args=(stream, identity, parent, done), daemon=True).start()

    def _run_hooks_when_idle(self) -> None:
        if not self._kernel.is_executing:
            self.run_hooks()

    def _answer(self, stream: Any, identity: Any, parent: dict[str, Any], done: threading.Event) -> None:
        """In a thread of its own: the control channel goes on."""
        has_run = False if self._kernel.is_executing else done.wait(HOOKS_S)
        content = {"status": "ok", "hooks_ran": has_run}
        stream.io_loop.add_callback(self._kernel.session.send, stream, REPLY, content, parent, identity)
