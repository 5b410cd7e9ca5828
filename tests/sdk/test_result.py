"""Results, images, and how they show in a notebook."""

from __future__ import annotations

from pathlib import Path

import pytest
from played_run import NOW, PNG

from cloche import GuestFault, RunFailed, RunResult, RunStatus
from cloche.models import (
    DisplayOutput,
    ErrorOutput,
    Failure,
    Output,
    Run,
    RunError,
    RunState,
    StreamOutput,
    TruncatedOutput,
)

ERROR = RunError(name="ValueError", value="oops", traceback=["Traceback", "ValueError: oops"])


def result(*outputs: Output, status: RunStatus | None = RunStatus.OK, **more: object) -> RunResult:
    run = Run(
        id="run-000000000000", context_id="default", generation=1,
        state=RunState.FINISHED if status else RunState.RUNNING, status=status, code="c", execution_count=1,
        outputs=list(outputs), created_at=NOW, started_at=NOW, finished_at=NOW, duration_s=1, cursor="e.1",
    )  # fmt: skip
    return RunResult(run.model_copy(update=more))


def out(text: str) -> StreamOutput:
    return StreamOutput(type="stdout", text=text)


def value(**data: object) -> DisplayOutput:
    return DisplayOutput(type="result", data={key.replace("_", "/"): item for key, item in data.items()})  # type: ignore[misc]


def shown(mime: str, content: object) -> DisplayOutput:
    return DisplayOutput(type="display", data={mime: content, "text/plain": "<object>"})  # type: ignore[dict-item]


def test_text_is_the_value_of_the_last_expression() -> None:
    assert result(out("x"), value(text_plain="2")).text == "2"
    assert result(out("x")).text is None


def test_streams_are_joined_and_kept_apart() -> None:
    made = result(out("a"), StreamOutput(type="stderr", text="e"), out("b"))
    assert (made.stdout, made.stderr) == ("ab", "e")


def test_images_are_decoded_once_a_display() -> None:
    both = DisplayOutput(type="display", data={"image/svg+xml": "<svg/>", "image/png": PNG[:10] + "\n" + PNG[10:]})
    images = result(both, shown("image/svg+xml", "<svg/>"), shown("text/html", "<b>")).images
    assert [(image.mime, image.data[:4]) for image in images] == [("image/png", b"\x89PNG"), ("image/svg+xml", b"<svg")]


@pytest.mark.parametrize("content", ["!!", 5, None, "abc"])
def test_an_image_that_is_none_is_the_guests_fault(content: object) -> None:
    with pytest.raises(GuestFault):
        _ = result(shown("image/png", content)).images


def test_images_are_saved_with_numbers(tmp_path: Path) -> None:
    made = result(shown("image/png", PNG), shown("image/jpeg", PNG))
    paths = made.save_images(tmp_path / "new" / "dir", prefix="plot")
    assert [path.name for path in paths] == ["plot-1.png", "plot-2.jpg"]
    assert paths[0].read_bytes().startswith(b"\x89PNG")


def test_a_good_result_is_returned_by_raise_for_error() -> None:
    made = result()
    assert made.ok
    assert made.raise_for_error() is made


def test_what_the_code_raised_is_raised_on_request() -> None:
    made = result(status=RunStatus.ERROR, error=ERROR)
    with pytest.raises(RunFailed, match="ValueError: oops") as caught:
        made.raise_for_error()
    assert caught.value.result is made


def test_a_lost_kernel_says_that_the_variables_are_gone() -> None:
    failure = Failure(reason="out_of_memory", message="the kernel was killed: out of memory")
    with pytest.raises(RunFailed, match=r"out of memory.*variables are gone"):
        result(status=RunStatus.FAILED, failure=failure, kernel_restarted=True).raise_for_error()


def test_an_unfinished_run_is_not_ok() -> None:
    made = result(status=None)
    assert (made.ok, made.finished) == (False, False)
    with pytest.raises(RunFailed, match="running"):
        made.raise_for_error()


def test_a_notebook_shows_everything_in_order() -> None:
    truncated = TruncatedOutput(records=2, bytes=99)
    bundle = result(
        out("a<b\n"), shown("image/png", PNG), truncated, ErrorOutput(**ERROR.model_dump())
    )._repr_mimebundle_()
    html = bundle["text/html"]
    assert html.index("a&lt;b") < html.index("data:image/png;base64,") < html.index("99 bytes") < html.index("oops")
    assert bundle["text/plain"].startswith("a<b\n<object>\n")


def test_html_from_a_sandbox_cannot_touch_the_notebook_page() -> None:
    evil = "<script>parent.Jupyter.notebook.kernel.execute('boom')</script>\"'><script>alert(1)</script>"
    html = result(shown("text/html", evil))._repr_mimebundle_()["text/html"]
    assert "<script>" not in html
    assert 'sandbox="allow-scripts"' in html
    assert "allow-same-origin" not in html


def test_svg_is_shown_as_an_image_whose_scripts_do_not_run() -> None:
    html = result(shown("image/svg+xml", "<svg onload=alert(1)>"))._repr_mimebundle_()["text/html"]
    assert html.startswith('<img src="data:image/svg+xml;base64,')
    assert "onload" not in html


@pytest.mark.parametrize("mime", ["application/javascript", "text/markdown", "application/vnd.plotly.v1+json"])
def test_types_that_could_execute_are_shown_as_text(mime: str) -> None:
    bundle = result(shown(mime, "alert(1)"))._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/html"] == "<pre>&lt;object&gt;</pre>"


def test_nothing_shows_as_nothing() -> None:
    assert result()._repr_mimebundle_() == {"text/plain": ""}
