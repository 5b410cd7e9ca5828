"""Images: pictures among the outputs of a run, decoded."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cloche.errors import GuestFault
from cloche.models import DisplayOutput, MimeBundle, Output

EXTENSIONS: Final = {
    "image/png": "png",
    "image/jpeg": "jpg",
    "image/svg+xml": "svg",
    "image/gif": "gif",
    "image/webp": "webp",
    "image/bmp": "bmp",
}
"""Best first: of one display that comes in several of them (PNG and SVG, say) only the first is an image of the run."""


@dataclass(frozen=True, slots=True)
class ImageOutput:
    """One image: its MIME type and its bytes."""

    mime: str
    data: bytes = field(repr=False)

    @property
    def extension(self) -> str:
        """The usual file name extension, without the dot."""
        return EXTENSIONS[self.mime]

    def save(self, path: Path | str) -> Path:
        """Write the bytes to ``path``."""
        target = Path(path)
        target.write_bytes(self.data)
        return target

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return {self.mime: encoded(self)}


def images_of(outputs: list[Output]) -> Iterator[ImageOutput]:
    """The images of ``outputs``, in order, one for each display that has one."""
    for output in outputs:
        if isinstance(output, DisplayOutput) and (image := image_in(output.data)) is not None:
            yield image


def image_in(bundle: MimeBundle) -> ImageOutput | None:
    """The best image of one MIME bundle.

    :raises GuestFault: its content is not what Jupyter says it must be (base64 text; plain text for SVG).
    """
    mime = next((mime for mime in EXTENSIONS if mime in bundle), None)
    if mime is None:
        return None
    content = bundle[mime]
    if not isinstance(content, str):
        raise GuestFault(f"an {mime} output is not text but {type(content).__name__}")
    return ImageOutput(mime, content.encode() if mime == "image/svg+xml" else _decoded(mime, content))


def encoded(image: ImageOutput) -> str:
    """As it stands in a MIME bundle."""
    if image.mime == "image/svg+xml":
        return image.data.decode()
    return base64.b64encode(image.data).decode()


def _decoded(mime: str, content: str) -> bytes:
    try:
        return base64.b64decode("".join(content.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise GuestFault(f"an {mime} output is not base64") from error
