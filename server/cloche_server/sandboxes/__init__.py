"""Sandboxes: making them, finding them, ending them, and noticing when they end by themselves."""

from cloche_server.sandboxes._drivers import DriverSet
from cloche_server.sandboxes._idempotent import IdempotentCreate
from cloche_server.sandboxes._recovery import Recovered, recover
from cloche_server.sandboxes._seams import Images, Limits, ResolvedImage
from cloche_server.sandboxes._service import SandboxService

__all__ = [
    "DriverSet",
    "IdempotentCreate",
    "Images",
    "Limits",
    "Recovered",
    "ResolvedImage",
    "SandboxService",
    "recover",
]
