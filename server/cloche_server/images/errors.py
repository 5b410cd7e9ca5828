"""What can go wrong with images.

::

    ClocheError
    ├── NotFound
    │   └── ImageNotFound
    ├── Conflict
    │   └── ImageInUse
    ├── InvalidRequest
    │   └── BadRecipe           the directory cannot be built: no Dockerfile, a parent that is not there
    └── ServiceError
        ├── ImageBuildFailed    the builder said no; ``details.output`` has its last lines
        ├── BuilderMissing      neither buildah nor a Docker engine can be used here
        └── BuildLockTimeout    another build held the lock for the whole wait
"""

from __future__ import annotations

from cloche.errors import Conflict, InvalidRequest, NotFound, ServiceError


class ImageNotFound(NotFound):
    """No image of that name or digest. ``details.known`` lists the names there are."""


class ImageInUse(Conflict):
    """Sandboxes still read from the image; ``details.users`` names them."""


class BadRecipe(InvalidRequest):
    """The image directory cannot be built as it is."""


class ImageBuildFailed(ServiceError):
    """The builder failed; ``details.output`` has its last lines. Nothing was added to the store."""


class BuilderMissing(ServiceError):
    """No program that builds images can be used; the hint says what to install."""


class BuildLockTimeout(ServiceError):
    """Another build held the lock for ``details.bound_s`` seconds."""
