"""Sandboxes: making them, finding them, putting them to rest and waking them, ending them, and noticing when they end by
themselves."""

from cloche_server.sandboxes._creating import Claim
from cloche_server.sandboxes._drivers import DriverSet
from cloche_server.sandboxes._failure import not_running
from cloche_server.sandboxes._idempotent import IdempotentCreate
from cloche_server.sandboxes._keyed import Keyed, Record, deleted_since, hash_body
from cloche_server.sandboxes._live import Live
from cloche_server.sandboxes._recovery import Recovered, recover
from cloche_server.sandboxes._resting import previous_of
from cloche_server.sandboxes._saved import Saved, SavedIdentity
from cloche_server.sandboxes._saving import Steps
from cloche_server.sandboxes._seams import Images, Limits, ResolvedImage, Volumes
from cloche_server.sandboxes._service import SandboxService
from cloche_server.sandboxes._waking import check_epoch

__all__ = [
    "Claim",
    "DriverSet",
    "IdempotentCreate",
    "Images",
    "Keyed",
    "Limits",
    "Live",
    "Record",
    "Recovered",
    "ResolvedImage",
    "SandboxService",
    "Saved",
    "SavedIdentity",
    "Steps",
    "Volumes",
    "check_epoch",
    "deleted_since",
    "hash_body",
    "not_running",
    "previous_of",
    "recover",
]
