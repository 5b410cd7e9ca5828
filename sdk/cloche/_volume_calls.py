"""The calls of volumes and usage; as `cloche._calls`, whose contract is docs/protocol.md."""

from __future__ import annotations

from cloche import models
from cloche._answers import model_parser
from cloche._calls import Call, Query, json_body, sandbox_path, segment

_volume = model_parser(models.Volume)
_volumes = model_parser(models.Page[models.Volume])
_usage = model_parser(models.Usage)
_usages = model_parser(models.Page[models.Usage])


def create_volume(body: models.VolumeCreate) -> Call[models.Volume]:
    return Call("POST", "/v1/volumes", _volume, body=json_body(body))


def volumes(query: Query) -> Call[models.Page[models.Volume]]:
    return Call("GET", "/v1/volumes", _volumes, query=query, repeatable=True)


def volume(reference: str) -> Call[models.Volume]:
    return Call("GET", f"/v1/volumes/{segment('volume', reference)}", _volume, repeatable=True)


def delete_volume(reference: str) -> Call[models.Volume]:
    return Call("DELETE", f"/v1/volumes/{segment('volume', reference)}", _volume)


def usage(sandbox_id: str) -> Call[models.Usage]:
    return Call("GET", f"{sandbox_path(sandbox_id)}/usage", _usage, repeatable=True)


def usages(query: Query) -> Call[models.Page[models.Usage]]:
    return Call("GET", "/v1/usage", _usages, query=query, repeatable=True)
