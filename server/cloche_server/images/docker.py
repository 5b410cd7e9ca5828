"""Builds with a Docker engine, where one answers: BuildKit is needed (engine 20.10 or newer).

Unlike buildah it cannot mount a directory into RUN steps, so this machine's index and CA settings are not used; proxies
come from Docker's own client configuration.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import BaseModel, TypeAdapter

from cloche_server.images.builder import INPUTS_LABEL, BuiltConfig, env_of
from cloche_server.images.host_settings import environment
from cloche_server.images.process import Report, capture, run

_ENGINE_ANSWER_S: Final = 5.0
_PULL_S: Final = 120.0
_BUILDKIT: Final[Mapping[str, str]] = {"DOCKER_BUILDKIT": "1", "BUILDKIT_PROGRESS": "plain"}


class _Config(BaseModel):
    Env: list[str] | None = None
    Entrypoint: list[str] | None = None
    Labels: dict[str, str] | None = None


class _Inspected(BaseModel):
    Config: _Config


class Docker:
    """See `Builder`. Needs root as well, to keep the owners of the exported tree."""

    def __init__(self, cache_dir: Path, lock: int) -> None:
        self._cache: Final = cache_dir
        self._lock: Final = lock

    @staticmethod
    def usable() -> bool:
        """Whether an engine answers."""
        if os.geteuid() != 0 or shutil.which("docker") is None:
            return False
        ask = ["docker", "version", "--format", "{{.Server.Version}}"]
        try:
            return subprocess.run(ask, capture_output=True, timeout=_ENGINE_ANSWER_S, check=False).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    @property
    def name(self) -> str:
        """See `Builder.name`."""
        return "docker " + capture(["docker", "version", "--format", "{{.Server.Version}}"], "docker version").strip()

    def has(self, tag: str) -> bool:
        """See `Builder.has`."""
        return subprocess.run(["docker", "image", "inspect", tag], capture_output=True, check=False).returncode == 0

    def inputs(self, tag: str) -> str | None:
        """See `Builder.inputs`."""
        return (self._inspect(tag).Labels or {}).get(INPUTS_LABEL) if self.has(tag) else None

    def pull(self, image: str, report: Report) -> bool:
        """See `Builder.pull`."""
        try:
            done = subprocess.run(
                ["docker", "pull", image], capture_output=True, text=True, timeout=_PULL_S, check=False
            )
        except subprocess.TimeoutExpired:
            return False
        report((done.stdout + done.stderr).strip())
        return done.returncode == 0

    def import_tar(self, tarball: Path, tag: str, report: Report) -> None:
        """See `Builder.import_tar`."""
        run(["docker", "import", str(tarball), tag], "importing the base", report)

    def build(self, context: Path, tag: str, settings: Path, inputs: str, report: Report, *, fresh: bool) -> None:
        """See `Builder.build`."""
        argv = ["docker", "build", "--label", f"{INPUTS_LABEL}={inputs}", "--tag", tag]
        argv += [*(["--no-cache"] if fresh else []), str(context)]
        run(argv, f"building {tag}", report, env=_BUILDKIT, keep_open=[self._lock])

    def export(self, tag: str, rootfs: Path, report: Report, like: Path | None) -> None:
        """See `Builder.export`; ``like`` is not used.

        By BuildKit's exporter: `docker export` would blank /etc/hosts and /etc/resolv.conf.
        """
        tarball = self._cache / "export.tar"
        source = self._cache / "export"
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir(parents=True)
        (source / "Dockerfile").write_text(f"FROM {tag}\n")
        try:
            output = f"type=tar,dest={tarball}"
            run(["docker", "build", "--output", output, str(source)], f"exporting {tag}", report, env=_BUILDKIT)
            unpack = ["tar", "--extract", "--numeric-owner", "--same-owner", "--same-permissions", "--xattrs"]
            run([*unpack, "--file", str(tarball), "--directory", str(rootfs)], f"unpacking {tag}", report)
        finally:
            tarball.unlink(missing_ok=True)
            shutil.rmtree(source, ignore_errors=True)

    def config(self, tag: str) -> BuiltConfig:
        """See `Builder.config`."""
        config = self._inspect(tag)
        return BuiltConfig(env_of(config.Env or [], environment()), config.Entrypoint or [])

    def tidy(self) -> None:
        """See `Builder.tidy`. The engine clears its own builds."""

    def _inspect(self, tag: str) -> _Config:
        text = capture(["docker", "image", "inspect", tag], f"reading {tag}")
        return TypeAdapter(list[_Inspected]).validate_json(text)[0].Config
