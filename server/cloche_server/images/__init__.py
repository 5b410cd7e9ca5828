"""Images: root file systems for sandboxes, built from ``sandbox_images/`` and kept by content digest.

`ImageStore` finds, lists and removes them; `build_image` makes them. This package knows nothing about sandboxes: who
uses an image is asked through a function that the caller passes in.
"""

from cloche_server.images.build import build_image
from cloche_server.images.errors import (
    BadRecipe,
    BuilderMissing,
    BuildLockTimeout,
    ImageBuildFailed,
    ImageInUse,
    ImageNotFound,
)
from cloche_server.images.image import Image, ImageMetadata
from cloche_server.images.store import ImageStore, InUse, nobody_uses

__all__ = [
    "BadRecipe",
    "BuildLockTimeout",
    "BuilderMissing",
    "Image",
    "ImageBuildFailed",
    "ImageInUse",
    "ImageMetadata",
    "ImageNotFound",
    "ImageStore",
    "InUse",
    "build_image",
    "nobody_uses",
]
