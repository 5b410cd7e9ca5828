"""One server's metrics. docs/metrics.md lists them all; a test compares.

Labels have few values, known beforehand (routes, statuses, error codes, states, drivers): never an id, an owner or a
name, which would grow without bound and say who uses the server for what.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Operation = Literal["create", "claim", "run", "pause", "suspend", "stop", "resume", "snapshot", "restore", "fork"]

OPERATIONS: Final[tuple[Operation, ...]] = get_args(Operation)

BUCKETS_S: Final = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
"""From a claim (some ms) to a start with its second try (60 s)."""

Values = Mapping[tuple[str, ...], float]
"""Values of the labels, in the order in which the labels were named -> the number."""

# A second time series for each counter, with the time of its birth: nobody reads these.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """Made once for a server; whoever does something worth counting is given it."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._operations = Histogram(
            "cloche_operation_seconds",
            "How long operations that succeeded took.",
            ["operation"],
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        for operation in OPERATIONS:
            self._operations.labels(operation)
        self._requests = Counter(
            "cloche_http_requests",
            "Requests that were answered, by route; route is 'none' when there is no such path.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._errors = Counter(
            "cloche_errors", "Errors that were sent to clients, by code.", ["code"], registry=self._registry
        )

    def observe(self, operation: Operation, seconds: float) -> None:
        """One operation that succeeded."""
        self._operations.labels(operation).observe(seconds)

    @contextmanager
    def timed(self, operation: Operation) -> Iterator[None]:
        """Observe what is done within; nothing when it fails."""
        began = time.monotonic()
        yield
        self.observe(operation, time.monotonic() - began)

    def count_request(self, method: str, route: str | None, status: int, code: str | None) -> None:
        """One answer. ``route`` is the template of the path; None: no route, whose method may be anything."""
        known = (method, route) if route is not None else ("any", "none")
        self._requests.labels(*known, str(status)).inc()
        if code is not None:
            self._errors.labels(code).inc()

    def gauge(self, name: str, text: str, labels: Sequence[str], read: Callable[[], Values]) -> None:
        """A number that is asked for at each scrape: ``read`` is quick, and does not wait."""
        self._registry.register(_Gauge(name, text, labels, read))

    def text(self) -> bytes:
        """In Prometheus' text format (`CONTENT_TYPE`)."""
        return generate_latest(self._registry)


class _Gauge:
    """A collector, as prometheus_client wants it."""

    def __init__(self, name: str, text: str, labels: Sequence[str], read: Callable[[], Values]) -> None:
        self._name = name
        self._text = text
        self._labels = labels
        self._read = read

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Without asking: nothing may be there to be asked yet."""
        return [GaugeMetricFamily(self._name, self._text, labels=self._labels)]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for values, number in self._read().items():
            family.add_metric(values, number)
        return [family]
