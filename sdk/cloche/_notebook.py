"""Notebook: how the result of a run displays in a notebook on the user's side.

Outputs come from inside a sandbox and are not trusted: a notebook would execute scripts in HTML with the rights of the
user's own kernel. So HTML is shown in an iframe without an origin (its scripts run, for plotly and the like, but reach
nothing of the page), images (SVG, too) as data of ``<img>``, and text is escaped. Nothing else is passed on.
"""

from __future__ import annotations

import base64
import html
from typing import Final

from cloche._images import image_in
from cloche.models import DisplayOutput, ErrorOutput, Output, StreamOutput

ROW_PX: Final = 27
"""Height of a table row in common notebook styles; the frame cannot measure itself across its border."""

FRAME_PX: Final = (80, 640)
PLOTLY_PX: Final = 480
"""Plotly's default height is 450."""


def mime_bundle(outputs: list[Output]) -> dict[str, str]:
    """All outputs as one bundle: ``text/html``, and ``text/plain`` for where there is no HTML."""
    bundle = {"text/plain": "".join(_ended(plain_text(output)) for output in outputs).removesuffix("\n")}
    fragments = [fragment for output in outputs if (fragment := _fragment(output))]
    if fragments:
        bundle["text/html"] = "\n".join(fragments)
    return bundle


def plain_text(output: Output) -> str:
    """``output`` as text."""
    match output:
        case StreamOutput():
            return output.text
        case DisplayOutput():
            content = output.data.get("text/plain")
            return content if isinstance(content, str) else f"<{', '.join(sorted(output.data))}>"
        case ErrorOutput():
            return "\n".join(output.traceback) or f"{output.name}: {output.value}"
    return f"[{output.bytes} bytes of output were dropped here]"


def _ended(text: str) -> str:
    return text if text.endswith("\n") or not text else f"{text}\n"


def _fragment(output: Output) -> str:
    if not isinstance(output, DisplayOutput):
        return _pre(plain_text(output))
    if (image := image_in(output.data)) is not None:
        return f'<img src="data:{image.mime};base64,{base64.b64encode(image.data).decode()}">'
    content = output.data.get("text/html")
    return _frame(content) if isinstance(content, str) else _pre(plain_text(output))


def _pre(text: str) -> str:
    return f"<pre>{html.escape(text)}</pre>"


def _frame(content: str) -> str:
    """``content`` in a frame of a guessed height."""
    wanted = PLOTLY_PX if "<script" in content else (content.count("<tr") + 1) * ROW_PX
    height = max(FRAME_PX[0], min(FRAME_PX[1], wanted))
    style = f"width:100%;height:{height}px;border:0"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{html.escape(content)}"></iframe>'
