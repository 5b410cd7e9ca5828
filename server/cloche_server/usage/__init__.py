"""What sandboxes cost: measured while they live, added up over all their lives."""

from cloche_server.usage._service import UsageService

__all__ = ["UsageService"]
