"""Result: what a run produced, in the form people use it."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Self

from cloche._images import ImageOutput, images_of
from cloche._notebook import mime_bundle, plain_text
from cloche.errors import ClocheError
from cloche.models import DisplayOutput, Output, Run, RunError, RunState, RunStatus, StreamOutput


class RunFailed(ClocheError):
    """A run did not end well. Raised by `RunResult.raise_for_error`, never sent; ``result`` has the details."""

    code: ClassVar[str] = "run_failed"
    status: ClassVar[int] = 400

    def __init__(self, result: RunResult) -> None:
        super().__init__(_what_happened(result.run), hint=_what_to_know(result.run))
        self.result = result


class RunResult:
    """A run and its outputs. ``run`` is the model as the server sent it."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __repr__(self) -> str:
        return f"<RunResult {self.run.id} {self.run.status or self.run.state}>"

    @property
    def id(self) -> str:
        """Of the run."""
        return self.run.id

    @property
    def finished(self) -> bool:
        """False while it is queued or running: the outputs so far."""
        return self.run.state is RunState.FINISHED

    @property
    def ok(self) -> bool:
        """It finished, and nothing was raised, interrupted or lost."""
        return self.run.status is RunStatus.OK

    @property
    def status(self) -> RunStatus | None:
        """How it ended; None while it has not."""
        return self.run.status

    @property
    def outputs(self) -> list[Output]:
        """Everything in order, as a notebook would show it."""
        return self.run.outputs

    @property
    def text(self) -> str | None:
        """The value of the last expression as text; None when there is none."""
        results = [output for output in self.outputs if isinstance(output, DisplayOutput) and output.type == "result"]
        return plain_text(results[-1]) if results else None

    @property
    def stdout(self) -> str:
        """All text written to stdout that was kept. `run.truncated` says whether some was dropped."""
        return self._stream("stdout")

    @property
    def stderr(self) -> str:
        """All text written to stderr that was kept."""
        return self._stream("stderr")

    @property
    def images(self) -> list[ImageOutput]:
        """The images, decoded, in order."""
        return list(images_of(self.outputs))

    @property
    def error(self) -> RunError | None:
        """What the code raised."""
        return self.run.error

    def raise_for_error(self) -> Self:
        """Return this result if it is `ok`.

        :raises RunFailed: it is not, or the run has not finished.
        """
        if not self.ok:
            raise RunFailed(self)
        return self

    def save_images(self, directory: Path | str, *, prefix: str = "image") -> list[Path]:
        """Write the images to ``directory`` (made when missing) as ``image-1.png``, ``image-2.svg``, ...; overwrite."""
        target = Path(directory)
        target.mkdir(parents=True, exist_ok=True)
        return [
            image.save(target / f"{prefix}-{number}.{image.extension}") for number, image in enumerate(self.images, 1)
        ]

    def _stream(self, name: str) -> str:
        return "".join(
            output.text for output in self.outputs if isinstance(output, StreamOutput) and output.type == name
        )

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return mime_bundle(self.outputs)


def _what_happened(run: Run) -> str:
    if run.failure is not None:
        return f"the run {run.status or run.state}: {run.failure.message}"
    if run.error is not None:
        return f"{run.error.name}: {run.error.value}"
    return f"the run is {run.state}" if run.status is None else f"the run ended as {run.status}"


def _what_to_know(run: Run) -> str | None:
    return "the kernel was restarted: the context's variables are gone" if run.kernel_restarted else None
