"""The run that runs now: the facts about it, and how it ended. No sockets and no clock: times come from the caller."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cloche.models import Failure, InputRequest, RunStatus
from cloche_guest.contexts._failure import OurReason, explain_ours
from cloche_guest.contexts._router import Asked, Fact, Failed, Idle, Replied, Started, Text
from cloche_guest.contexts._run import RunRecord
from cloche_guest.contexts._supervision import StopReason, Watch


@dataclass
class Execution:
    """`message_id`: of the request; everything the kernel says about it carries that."""

    run: RunRecord
    message_id: str
    watch: Watch
    reply: Replied | None = None
    probe_id: str = ""
    stop: OurReason | None = None

    def ask_to_stop(self) -> None:
        """Somebody wants it interrupted."""
        self.watch = replace(self.watch, stop_asked=True)

    def interrupted(self, now: float, reason: StopReason | None) -> None:
        """SIGINT was sent; `reason` counts the first time."""
        first = self.watch.interrupted_at if self.watch.interrupted_at is not None else now
        self.watch = replace(self.watch, interrupted_at=first, interrupts=self.watch.interrupts + 1)
        self.stop = self.stop or reason

    def probed(self, now: float, probe_id: str) -> None:
        """A question was put behind it on shell."""
        self.probe_id = probe_id
        self.watch = replace(self.watch, probed_at=now)

    def probe_answered(self) -> None:
        """Nothing of this run can follow on shell."""
        self.watch = replace(self.watch, probe_answered=True)

    def take(self, fact: Fact, now: float) -> bool:
        """Note a fact about the run, but for what it shows. True: it may be over now, or may be interrupted."""
        run = self.run
        match fact:
            case Text():
                run.add_text(fact.stream, fact.text)
                return False
            case Failed():
                run.add_error(fact.error)
                return False
            case Asked():
                run.ask(InputRequest(prompt=fact.prompt, password=fact.password))
                return False
            case Started():
                run.begin(fact.execution_count)
                self.watch = replace(self.watch, begun=True)
            case Idle():
                self.watch = replace(self.watch, idle_at=now)
            case Replied():
                self.reply = fact
                self.watch = replace(self.watch, replied_at=now)
        return True

    def verdict(self, death: Failure | None) -> tuple[RunStatus, Failure | None]:
        """How it ended. `death`: why the kernel has ended by itself, if it has."""
        if self.run.kernel_restarted and self.stop is not None:
            return _STOPPED[self.stop], explain_ours(self.stop)
        if death is not None and not self._is_complete:
            return RunStatus.FAILED, death
        if self.stop == "timeout":
            message = f"it ran longer than {self.run.body.timeout_s:g} s and was interrupted; the variables are kept"
            return RunStatus.TIMED_OUT, Failure(reason="timeout", message=message)
        if self.stop is not None:
            return RunStatus.INTERRUPTED, None  # also when the code caught it: it was told to stop and did
        if self.reply is not None and self.reply.status == "ok":
            return RunStatus.OK, None
        return RunStatus.ERROR, None

    @property
    def _is_complete(self) -> bool:
        """The kernel said everything about it before it ended."""
        return self.watch.replied_at is not None and self.watch.idle_at is not None


_STOPPED: dict[OurReason, RunStatus] = {"interrupted": RunStatus.INTERRUPTED, "timeout": RunStatus.TIMED_OUT}
