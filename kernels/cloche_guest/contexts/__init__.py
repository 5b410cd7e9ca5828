"""Contexts: live kernels, their queues of runs and what those produced."""

from cloche_guest.contexts._identity_change import IdentityChange
from cloche_guest.contexts._service import ContextService

__all__ = ["ContextService", "IdentityChange"]
