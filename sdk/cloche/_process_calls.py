"""The calls of processes, exec and services; as `cloche._calls`, whose contract is docs/processes.md."""

from __future__ import annotations

from typing import Final

from cloche import models
from cloche._answers import model_parser
from cloche._calls import DEFAULT_ANSWER_S, Call, Query, json_body, sandbox_path, segment
from cloche.models.terminals import TerminalSize

SLOW_ANSWER_S: Final = 60.0
"""Above the server's bounds for starting and killing (30 s and the connection)."""

_process = model_parser(models.Process)
_processes = model_parser(models.Page[models.Process])
_output = model_parser(models.ProcessOutput)
_stdin = model_parser(models.StdinReply)
_wait = model_parser(models.WaitResult)
_exec = model_parser(models.ExecResult)
_service = model_parser(models.Service)
_services = model_parser(models.Page[models.Service])


def process_path(sandbox_id: str, process_id: str) -> str:
    return f"{sandbox_path(sandbox_id)}/processes/{segment('process', process_id)}"


def start_process(sandbox_id: str, body: models.ProcessCreate) -> Call[models.Process]:
    """Repeatable when the body has an ``id``: the guest knows a process it has started."""
    return Call(
        "POST",
        f"{sandbox_path(sandbox_id)}/processes",
        _process,
        body=json_body(body),
        repeatable=body.id is not None,
        answer_within_s=SLOW_ANSWER_S,
    )


def run_exec(sandbox_id: str, body: models.ExecCreate, wait_s: float) -> Call[models.ExecResult]:
    """Repeatable when the body has an ``id``, as a start."""
    return Call(
        "POST",
        f"{sandbox_path(sandbox_id)}/exec",
        _exec,
        query=(("wait_s", f"{wait_s:g}"),),
        body=json_body(body),
        repeatable=body.id is not None,
        answer_within_s=SLOW_ANSWER_S + wait_s,
    )


def processes(sandbox_id: str) -> Call[models.Page[models.Process]]:
    return Call("GET", f"{sandbox_path(sandbox_id)}/processes", _processes, repeatable=True)


def process(path: str) -> Call[models.Process]:
    return Call("GET", path, _process, repeatable=True)


def delete_process(path: str) -> Call[models.Process]:
    return Call("DELETE", path, _process, answer_within_s=SLOW_ANSWER_S)


def signal_process(path: str, body: models.ProcessSignal) -> Call[models.Process]:
    return Call("POST", f"{path}/signal", _process, body=json_body(body))


def resize_process(path: str, body: TerminalSize) -> Call[models.Process]:
    return Call("POST", f"{path}/resize", _process, body=json_body(body), repeatable=True)


def write_stdin(
    path: str, data: bytes, *, offset: int | None, close: bool, wait_s: float = 0
) -> Call[models.StdinReply]:
    """Repeatable with ``offset``: what was taken is not taken again."""
    query: Query = (("close", "true" if close else "false"), ("wait_s", f"{wait_s:g}"))
    if offset is not None:
        query = (*query, ("offset", str(offset)))
    return Call(
        "POST",
        f"{path}/stdin",
        _stdin,
        query=query,
        body=data,
        repeatable=offset is not None,
        answer_within_s=DEFAULT_ANSWER_S + wait_s,
    )


def process_output(path: str, query: Query, wait_s: float) -> Call[models.ProcessOutput]:
    query = (*query, ("wait_s", f"{wait_s:g}"))
    answer_s = DEFAULT_ANSWER_S + wait_s
    return Call("GET", f"{path}/output", _output, query=query, repeatable=True, answer_within_s=answer_s)


def wait_for_process(path: str, body: models.ProcessWait) -> Call[models.WaitResult]:
    """Repeatable: waiting changes nothing."""
    return Call(
        "POST",
        f"{path}/wait",
        _wait,
        body=json_body(body),
        repeatable=True,
        answer_within_s=DEFAULT_ANSWER_S + body.timeout_s,
    )


def declare_service(sandbox_id: str, body: models.ServiceCreate) -> Call[models.Service]:
    """Repeatable: the same declaration again changes nothing."""
    return Call("POST", f"{sandbox_path(sandbox_id)}/services", _service, body=json_body(body), repeatable=True)


def services(sandbox_id: str) -> Call[models.Page[models.Service]]:
    return Call("GET", f"{sandbox_path(sandbox_id)}/services", _services, repeatable=True)


def service(path: str) -> Call[models.Service]:
    return Call("GET", path, _service, repeatable=True)


def service_path(sandbox_id: str, name: str) -> str:
    return f"{sandbox_path(sandbox_id)}/services/{segment('service', name)}"


def delete_service(path: str) -> Call[models.Service]:
    return Call("DELETE", path, _service, answer_within_s=SLOW_ANSWER_S)


def restart_service(path: str) -> Call[models.Service]:
    return Call("POST", f"{path}/restart", _service, answer_within_s=SLOW_ANSWER_S)
