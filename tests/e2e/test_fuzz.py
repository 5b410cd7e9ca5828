"""schemathesis over the served OpenAPI, with a real sandbox behind it: no 5xx, no undocumented status, typed errors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode

from cloche.errors import ERRORS, ErrorBody
from cloche_server.openapi import build_document
from cloche_server.routes import ROUTES

from . import inside
from .conftest import end_server, make_server
from .server_process import ServerProcess

ENDLESS = {"context_events", "sandbox_events", "process_events", "watch_events"}
"""Streams without an end are not for a fuzzer that waits for whole answers."""

EXAMPLES = 50 if inside.FULL else 5
"""Requests of each call, good and bad ones each; there are some 120 calls, and a real sandbox answers most of them."""

DESTRUCTIVE = {"delete_sandbox", "delete_context", "restart_context", "delete_volume"}
"""These keep their random ids: the sandbox must live for the others."""


MAX_VALUE = 1000
"""Characters of a query value, each up to 12 on the wire: a request line over the server's 32 KiB has no HTTP answer."""


@dataclass
class Target:
    server: ServerProcess
    sandbox_id: str
    run_id: str


@pytest.fixture(scope="module")
def target(image: str) -> Iterator[Target]:
    """A server with room for one sandbox more than the one that is fuzzed, or creates would take the whole test."""
    assert image
    server = make_server("--max-sandboxes", "2")
    with server.client() as client:
        sandbox_id = client.post("/v1/sandboxes", json={"driver": "runc"}).json()["id"]
        assert client.post("/v1/volumes", json={"name": "aim", "size_mb": 16}).status_code == 201
        run = client.post(f"/v1/sandboxes/{sandbox_id}/contexts/default/runs", json={"code": "print(1)"}).json()
    yield Target(server, sandbox_id, run["id"])
    with server.client() as client:  # the last call may have put it to rest: their order is random
        assert client.post(f"/v1/sandboxes/{sandbox_id}/resume").json()["state"] == "running"
        assert inside.run(client, sandbox_id, "print(1)") == "1"
    assert not [line for line in server.log_lines() if "traceback" in line]
    end_server(server)
    assert not server.directory.exists()


def with_short_strings(node: Any) -> Any:
    """schemathesis makes a pattern with a greatest length one expression, and one of {0,131072} takes it a second, each
    time. No example comes near such a length: hypothesis draws from some kilobytes."""
    if isinstance(node, list):
        return [with_short_strings(each) for each in node]
    if not isinstance(node, dict):
        return node
    short = {name: with_short_strings(each) for name, each in node.items()}
    if isinstance(node.get("maxLength"), int) and "pattern" in node:
        short["maxLength"] = min(node["maxLength"], MAX_VALUE)
    return short


SCHEMA = schemathesis.openapi.from_dict(with_short_strings(build_document(ROUTES)))
OPERATIONS = {
    f"{operation.method.upper()} {operation.path}": operation
    for operation in (result.ok() for result in SCHEMA.get_all_operations())
    if operation.definition.raw["operationId"] not in ENDLESS
}


def aim(case: Case, target: Target) -> None:
    """At what exists, so that more than the first check is met."""
    if case.operation.definition.raw["operationId"] in DESTRUCTIVE:
        return
    real = {"sandbox_id": target.sandbox_id, "context_id": "default", "run_id": target.run_id, "volume": "aim"}
    for name, value in real.items():
        if name in case.path_parameters:
            case.path_parameters[name] = value
    if not isinstance(case.query, dict):
        return
    for name, value in case.query.items():
        if isinstance(value, str):
            case.query[name] = value[:MAX_VALUE]
    if "wait_s" in case.query:
        case.query["wait_s"] = min(case.query["wait_s"], 1) if isinstance(case.query["wait_s"], int | float) else "x"


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["good", "bad"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_any_request_gets_a_documented_answer(name: str, mode: GenerationMode, target: Target) -> None:
    try:
        cases = OPERATIONS[name].as_strategy(generation_mode=mode)

        @given(case=cases)
        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            phases=[Phase.generate],  # shrinking a real request takes minutes
        )
        def check(case: Case) -> None:
            aim(case, target)
            judge(case, target)

        check()
    except Unsatisfiable:
        pytest.skip("nothing of this call can be bad")


def judge(case: Case, target: Target) -> None:
    headers = {"Authorization": f"Bearer {target.server.key}"}
    response = case.call(base_url=target.server.url, headers=headers, timeout=90)
    assert response.status_code < 500, response.text
    documented = {int(status) for status in case.operation.definition.raw["responses"]}
    assert response.status_code in documented, response.text
    if response.status_code >= 400:
        body = ErrorBody.model_validate_json(response.content)
        assert ERRORS[body.code].status == response.status_code
