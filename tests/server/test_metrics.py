"""/metrics: who may read it, what is in it, and that it stays small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cloche.models import Role
from cloche_server.metrics import OPERATIONS, Metrics

from .conftest import Harness, harness

DOCS = Path(__file__).parents[2] / "docs" / "usage.md"


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Name and labels -> value; the format is checked by reading it."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scrape(cloche: Harness) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    response = await cloche.client.get("/metrics")
    assert response.status_code == 200, response.text
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return samples(response.text)


def test_what_fails_is_not_timed() -> None:
    metrics = Metrics()
    with metrics.timed("fork"):
        pass
    with pytest.raises(ValueError, match="no"), metrics.timed("fork"):
        raise ValueError("no")
    found = samples(metrics.text().decode())
    assert found["cloche_operation_seconds_count", (("operation", "fork"),)] == 1
    assert found["cloche_operation_seconds_count", (("operation", "claim"),)] == 0


def test_what_nobody_knows_makes_no_new_series() -> None:
    metrics = Metrics()
    for method in ("GET", "BREW", "X" * 1000):
        metrics.count_request(method, None, 404, "not_found")
    found = samples(metrics.text().decode())
    requests = [key for key in found if key[0] == "cloche_http_requests_total"]
    assert requests == [("cloche_http_requests_total", (("method", "any"), ("route", "none"), ("status", "404")))]
    assert found["cloche_errors_total", (("code", "not_found"),)] == 3


async def test_only_admins_read_it(cloche: Harness) -> None:
    async with cloche.client_of("ann", Role.MEMBER) as ann:
        assert (await ann.get("/metrics")).status_code == 403
        ann.headers.pop("Authorization")
        assert (await ann.get("/metrics")).status_code == 401
    assert (await cloche.client.get("/metrics")).status_code == 200


async def test_the_operator_may_open_it_and_nothing_else(short_dir: Path) -> None:
    async with harness(short_dir, metrics_open=True) as cloche, cloche.client_of("ann") as ann:
        ann.headers.pop("Authorization")
        assert "cloche_sandboxes" in (await ann.get("/metrics")).text
        assert (await ann.get("/v1/usage")).status_code == 401
        assert (await ann.get("/metrics", headers={"Host": "evil.example"})).status_code == 403


async def test_sandboxes_requests_and_errors_are_counted(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox(name="secret-name", env={"TOKEN": "secret-value"})
    await cloche.client.get("/v1/sandboxes/xxxxxxxxxxxxxxxxxxxx")
    await cloche.client.get(f"/v1/sandboxes/{sandbox_id}/contexts")
    await cloche.client.get("/v1/nothing")
    await cloche.client.request("BREW", "/v1/nothing")
    found = await scrape(cloche)
    assert found["cloche_sandboxes", (("driver", "runc"), ("state", "running"))] == 1
    assert found["cloche_uplink_connections", ()] >= 1
    assert found["cloche_operation_seconds_count", (("operation", "create"),)] == 1
    create = (("method", "POST"), ("route", "/v1/sandboxes"), ("status", "201"))
    assert found["cloche_http_requests_total", create] == 1
    missing = (("method", "GET"), ("route", "/v1/sandboxes/{sandbox_id}"), ("status", "404"))
    assert found["cloche_http_requests_total", missing] == 1
    assert found["cloche_errors_total", (("code", "not_found"),)] == 2
    assert found["process_resident_memory_bytes", ()] > 0
    text = (await cloche.client.get("/metrics")).text
    secrets = (sandbox_id, "secret", "xxxxxxxx", cloche.settings.admin_key_path.read_text().strip(), "admin")
    assert [word for word in secrets if word in text] == []


async def test_changes_of_a_life_are_timed(cloche: Harness) -> None:
    sandbox_id = await cloche.sandbox()
    for change in ("pause", "resume", "suspend", "resume"):
        response = await cloche.client.post(f"/v1/sandboxes/{sandbox_id}/{change}")
        assert response.status_code == 200, response.text
    found = await scrape(cloche)
    counts = {name: found["cloche_operation_seconds_count", (("operation", name),)] for name in OPERATIONS}
    assert {name: count for name, count in counts.items() if count} == {
        "create": 1, "pause": 1, "suspend": 1, "resume": 2,
    }  # fmt: skip
    assert found["cloche_sandboxes", (("driver", "runc"), ("state", "running"))] == 1


async def test_every_metric_and_operation_is_documented(cloche: Harness) -> None:
    text = DOCS.read_text()
    await cloche.sandbox()
    await cloche.client.get("/v1/nothing")
    families = {name for name, _ in await scrape(cloche) if name.startswith("cloche_")}
    names = {re.sub(r"_(bucket|count|sum)$", "", name) for name in families}
    assert {name for name in names if f"`{name}`" not in text} == set()
    assert set(re.findall(r"^\| `(cloche_\w+)`", text, re.M)) == names
    assert [name for name in OPERATIONS if f"`{name}`" not in text] == []
