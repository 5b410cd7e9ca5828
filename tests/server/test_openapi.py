"""The description says what the server does."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cloche_server.openapi import build_document
from cloche_server.routes import ROUTES
from cloche_server.routing import Route

DOCUMENT = build_document(ROUTES)
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]


def operation(route: Route) -> dict[str, Any]:
    found: dict[str, Any] = DOCUMENT["paths"][route.path][route.method.lower()]
    return found


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation)
def test_a_route_is_described_whole(route: Route) -> None:
    found = operation(route)
    in_path = {p["name"] for p in found["parameters"] if p["in"] == "path"}
    assert in_path == set(re.findall(r"\{(\w+)\}", route.path))
    assert {p["name"] for p in found["parameters"] if p["in"] == "query"} == set(route.query.model_fields)
    statuses = {str(status) for status in route.answers} | {str(error.status) for error in route.errors}
    assert set(found["responses"]) == statuses
    assert ("requestBody" in found) == (route.body is not None or route.bytes_body)
    assert (found["security"] == []) == (route.role is None)


def test_every_reference_leads_somewhere() -> None:
    refs = set(re.findall(r"'\$ref': '([^']+)'", str(DOCUMENT)))
    assert refs
    assert {ref.removeprefix("#/components/schemas/") for ref in refs} <= set(SCHEMAS)


def test_maps_refuse_keys_that_fit_no_pattern_as_the_server_does() -> None:
    env = SCHEMAS["SandboxCreate"]["properties"]["env"]
    assert env["patternProperties"]
    assert env["additionalProperties"] is False


def test_models_refuse_unknown_fields() -> None:
    assert SCHEMAS["SandboxCreate"]["additionalProperties"] is False


def test_parameters_have_no_null_since_a_url_has_none() -> None:
    for methods in DOCUMENT["paths"].values():
        for found in methods.values():
            assert "'null'" not in str(found["parameters"]), found["operationId"]
