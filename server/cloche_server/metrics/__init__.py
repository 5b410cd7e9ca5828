"""Numbers about the server for Prometheus: what happened how often, how long it took, and how things are now."""

from cloche_server.metrics._metrics import CONTENT_TYPE, OPERATIONS, Metrics, Operation, Values

__all__ = ["CONTENT_TYPE", "OPERATIONS", "Metrics", "Operation", "Values"]
