"""Templates: sandboxes made ready once, saved, and started many times."""

from cloche_server.templates._guest import Guest
from cloche_server.templates._service import TemplateService, make_live
from cloche_server.templates._steps import StepFailed, start_default_context
from cloche_server.templates._workshop import BUILDER, Workshop

__all__ = ["BUILDER", "Guest", "StepFailed", "TemplateService", "Workshop", "make_live", "start_default_context"]
