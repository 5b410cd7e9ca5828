"""The declared services on disk: one JSON file that only root may read, since it has environments."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError

from cloche.models import ServiceCreate

log = logging.getLogger(__name__)

_FILE: TypeAdapter[list[ServiceCreate]] = TypeAdapter(list[ServiceCreate], config=ConfigDict(defer_build=True))


class Declarations:
    """In ``directory``, which is made when there is something to keep."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "services.json"

    def read(self) -> list[ServiceCreate]:
        """In the order they were declared. A file that cannot be read is said and left as it is."""
        try:
            return _FILE.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return []
        except (OSError, ValidationError) as error:
            log.warning("the declared services in %s cannot be read: %s", self._path, error)
            return []

    def write(self, services: list[ServiceCreate]) -> None:
        """All of them, or none: the new file takes the place of the old one in one step."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)
            file.write(_FILE.dump_json(services))
            file.flush()
            os.fsync(descriptor)
        fresh.replace(self._path)
