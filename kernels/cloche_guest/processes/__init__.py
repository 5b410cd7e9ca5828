"""Processes: programs started through the API, their journals, waits, and services."""

from cloche_guest.processes._declarations import Declarations
from cloche_guest.processes._process import LiveProcess
from cloche_guest.processes._service import ProcessService
from cloche_guest.processes._services import Services

__all__ = ["Declarations", "LiveProcess", "ProcessService", "Services"]
