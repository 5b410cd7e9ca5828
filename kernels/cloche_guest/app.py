"""The guest's routes."""

from __future__ import annotations

from typing import Any

from tornado import web

from cloche_guest.handlers import contexts as context_handlers
from cloche_guest.handlers import lifecycle as lifecycle_handlers
from cloche_guest.handlers import ports as port_handlers
from cloche_guest.handlers import processes as process_handlers
from cloche_guest.handlers import runs as run_handlers
from cloche_guest.handlers import terminals as terminal_handlers
from cloche_guest.handlers.events import SandboxEventsHandler
from cloche_guest.handlers.files import file_routes
from cloche_guest.handlers.health import HealthHandler
from cloche_guest.handlers.watches import watch_routes
from cloche_guest.http import NoSuchPath, quiet_log
from cloche_guest.parts import Parts
from cloche_guest.processes import ProcessService, Services

_CONTEXT = r"/v1/contexts/([^/]+)"
_RUN = _CONTEXT + r"/runs/([^/]+)"
_PROCESS = r"/v1/processes/([^/]+)"
_SERVICE = r"/v1/services/([^/]+)"
_TERMINAL = r"/v1/terminals/([^/]+)"

MAX_MESSAGE_BYTES = 2 * 1024 * 1024
"""Largest WebSocket message of a client: one line of input, JSON-escaped."""

PING_S = 15.0
"""Common proxies cut a WebSocket that is silent for 60 s."""


def make_app(parts: Parts) -> web.Application:
    """All routes of docs/protocol.md that a guest serves."""
    service: dict[str, Any] = {"contexts": parts.contexts}
    on_terminals: dict[str, Any] = {"terminals": parts.terminals}
    return web.Application(
        [
            (r"/v1/health", HealthHandler, {**service, "identity": parts.identity}),
            (r"/v1/contexts", context_handlers.ContextsHandler, service),
            (_CONTEXT, context_handlers.OneContextHandler, service),
            (_CONTEXT + "/interrupt", context_handlers.InterruptHandler, service),
            (_CONTEXT + "/restart", context_handlers.RestartHandler, service),
            (_CONTEXT + "/complete", context_handlers.CompleteHandler, service),
            (_CONTEXT + "/inspect", context_handlers.InspectHandler, service),
            (_CONTEXT + "/history", context_handlers.HistoryHandler, service),
            (_CONTEXT + "/variables", context_handlers.VariablesHandler, service),
            (_CONTEXT + "/events", context_handlers.ContextEventsHandler, service),
            (_CONTEXT + "/runs", run_handlers.RunsHandler, service),
            (_RUN, run_handlers.OneRunHandler, service),
            (_RUN + "/interrupt", run_handlers.RunInterruptHandler, service),
            (_RUN + "/input", run_handlers.RunInputHandler, service),
            (_RUN + "/events", run_handlers.RunEventsHandler, service),
            *lifecycle_routes(parts),
            *process_routes(parts.processes, parts.services),
            *file_routes(parts.files),
            *watch_routes(parts.watches),
            (r"/v1/events", SandboxEventsHandler, {"events": parts.events}),
            (r"/v1/ports", port_handlers.PortsHandler, {"ports": parts.ports}),
            (r"/v1/ports/([^/]+)/connect", port_handlers.ConnectHandler, {"ports": parts.ports}),
            (r"/v1/terminals", terminal_handlers.TerminalsHandler, on_terminals),
            (_TERMINAL, terminal_handlers.OneTerminalHandler, on_terminals),
            (_TERMINAL + "/resize", terminal_handlers.TerminalResizeHandler, on_terminals),
            (_TERMINAL + "/recording", terminal_handlers.RecordingHandler, on_terminals),
            (_TERMINAL + "/attach", terminal_handlers.AttachHandler, on_terminals),
        ],
        default_handler_class=NoSuchPath,
        log_function=quiet_log,
        tell=parts.events.append,
        websocket_max_message_size=MAX_MESSAGE_BYTES,
        websocket_ping_interval=PING_S,
    )


def lifecycle_routes(parts: Parts) -> list[tuple[Any, ...]]:
    """For the server alone; it passes no client's request on to them."""
    return [
        (
            r"/v1/uplinks/close",
            lifecycle_handlers.UplinksCloseHandler,
            {"uplink": parts.uplink, "events": parts.events, "terminals": parts.terminals},
        ),
        (r"/v1/identity", lifecycle_handlers.IdentityHandler, {"rebirth": parts.rebirth}),
        (r"/v1/activity", lifecycle_handlers.ActivityHandler, {"activity": parts.activity}),
        (r"/v1/end-all", lifecycle_handlers.EndAllHandler, {"parts": parts}),
        (r"/v1/warm-up", run_handlers.WarmUpHandler, {"contexts": parts.contexts}),
        (r"/v1/preload", lifecycle_handlers.PreloadHandler, {"contexts": parts.contexts}),
        (r"/v1/variables/summary", lifecycle_handlers.VariablesSummaryHandler, {"contexts": parts.contexts}),
    ]


def process_routes(processes: ProcessService, services: Services) -> list[tuple[Any, ...]]:
    """Processes, exec and services."""
    on_processes: dict[str, Any] = {"processes": processes}
    on_services: dict[str, Any] = {"services": services}
    return [
        (r"/v1/exec", process_handlers.ExecHandler, on_processes),
        (r"/v1/processes", process_handlers.ProcessesHandler, on_processes),
        (_PROCESS, process_handlers.OneProcessHandler, on_processes),
        (_PROCESS + "/signal", process_handlers.SignalHandler, on_processes),
        (_PROCESS + "/resize", process_handlers.ResizeHandler, on_processes),
        (_PROCESS + "/stdin", process_handlers.StdinHandler, on_processes),
        (_PROCESS + "/output", process_handlers.OutputHandler, on_processes),
        (_PROCESS + "/events", process_handlers.ProcessEventsHandler, on_processes),
        (_PROCESS + "/wait", process_handlers.WaitHandler, on_processes),
        (r"/v1/services", process_handlers.ServicesHandler, on_services),
        (_SERVICE, process_handlers.OneServiceHandler, on_services),
        (_SERVICE + "/restart", process_handlers.ServiceRestartHandler, on_services),
    ]
