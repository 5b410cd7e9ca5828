"""Previews: ports of sandboxes at URLs of their own, for those who may."""

from cloche_server.preview._gateway import PreviewGateway
from cloche_server.preview._service import MAX_CONNECTIONS, PreviewService

__all__ = ["MAX_CONNECTIONS", "PreviewGateway", "PreviewService"]
