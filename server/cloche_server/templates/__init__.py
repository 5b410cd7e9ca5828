"""Templates: sandboxes made ready once, saved, and started many times."""

from cloche_server.templates._guest import Guest
from cloche_server.templates._sandbox_workshop import SandboxWorkshop, Save
from cloche_server.templates._service import TemplateService
from cloche_server.templates._starting import TemplateStarts, check_only_bound_late
from cloche_server.templates._steps import start_default_context
from cloche_server.templates._workshop import BUILDER, FILLING, Workshop

__all__ = [
    "BUILDER",
    "FILLING",
    "Guest",
    "SandboxWorkshop",
    "Save",
    "TemplateService",
    "TemplateStarts",
    "Workshop",
    "check_only_bound_late",
    "start_default_context",
]
