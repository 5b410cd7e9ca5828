"""The routes of volumes; part of `cloche_server.routes`."""

from __future__ import annotations

from typing import Final

from cloche.errors import Conflict, LimitReached, NotFound
from cloche.models import Page, Role, Volume, VolumeCreate
from cloche_server.api import volumes
from cloche_server.routing import ListVolumes, Route

_V: Final = "/v1/volumes/{volume}"

VOLUME_ROUTES: Final = [
    Route(
        "POST",
        "/v1/volumes",
        "create_volume",
        "Make an empty volume",
        "volumes",
        {201: Volume},
        volumes.create,
        body=VolumeCreate,
        role=Role.MEMBER,
        own_errors=(Conflict, LimitReached),
    ),
    Route(
        "GET",
        "/v1/volumes",
        "list_volumes",
        "Volumes, newest first",
        "volumes",
        {200: Page[Volume]},
        volumes.list_some,
        query=ListVolumes,
    ),
    Route(
        "GET",
        _V,
        "get_volume",
        "One volume, by id or name",
        "volumes",
        {200: Volume},
        volumes.get,
        own_errors=(NotFound,),
    ),
    Route(
        "DELETE",
        _V,
        "delete_volume",
        "Remove a volume and what is in it; not while a sandbox has it",
        "volumes",
        {200: Volume},
        volumes.delete,
        role=Role.MEMBER,
        own_errors=(NotFound, Conflict),
    ),
]
