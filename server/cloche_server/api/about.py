"""The server about itself: health, info, images, and its own description."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from typing import TYPE_CHECKING

from cloche.models import Health, Image, ImageList, Info
from cloche_server.api.docs_page import DOCS_CSP, DOCS_PAGE
from cloche_server.routing import Call, Reply

if TYPE_CHECKING:
    from cloche_server.services import Services


async def health(_: Services, __: Call) -> Reply:
    """Answers as long as the event loop turns; tells nothing."""
    return Reply(Health(status="ok"))


async def info(services: Services, call: Call) -> Reply:
    return Reply(
        Info(
            version=version("cloche"),
            default_driver=services.drivers.default_name,
            drivers=services.drivers.reports(),
            owner=call.principal.owner,
            role=call.principal.role.value,
        )
    )


async def images(services: Services, _: Call) -> Reply:
    found = [
        Image(name=image.name, digest=image.digest, created_at=image.created_at, size_bytes=image.size_bytes)
        for image in services.images.list()
    ]
    return Reply(ImageList(images=sorted(found, key=lambda image: image.created_at, reverse=True)))


async def openapi(services: Services, _: Call) -> Reply:
    return Reply(await asyncio.to_thread(services.openapi))


async def docs(_: Services, __: Call) -> Reply:
    return Reply(DOCS_PAGE, content_type="text/html; charset=utf-8", headers={"Content-Security-Policy": DOCS_CSP})
