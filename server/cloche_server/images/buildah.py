"""Builds with buildah: a program, no daemon. Its store is Cloche's own, so nothing here touches the user's images."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from cloche_server.images.builder import INPUTS_LABEL, BuiltConfig, env_of
from cloche_server.images.errors import ImageBuildFailed
from cloche_server.images.host_settings import MOUNT, environment
from cloche_server.images.process import Report, capture, run
from cloche_server.images.tree_copy import copy_tree

_FIRST_ANSWER_S: Final = 8.0
"""A registry that has said nothing by then counts as not reachable; one that has may take its time."""


class _OciConfig(BaseModel):
    Env: list[str] | None = None
    Entrypoint: list[str] | None = None
    Labels: dict[str, str] | None = None


class _OciImage(BaseModel):
    config: _OciConfig = _OciConfig()


class _Inspected(BaseModel):
    OCIv1: _OciImage


class Buildah:
    """See `Builder`. Needs root: layers hold files of every owner."""

    def __init__(self, cache_dir: Path, lock: int) -> None:
        store, runtime = cache_dir / "buildah", cache_dir / "buildah-run"
        self._command: Final = (
            "buildah",
            "--storage-driver",
            "overlay",
            "--root",
            str(store),
            "--runroot",
            str(runtime),
        )
        self._lock: Final = lock

    @staticmethod
    def usable() -> bool:
        """Whether this process can use it."""
        return os.geteuid() == 0 and shutil.which("buildah") is not None

    @property
    def name(self) -> str:
        """See `Builder.name`."""
        return " ".join(capture(["buildah", "--version"], "buildah").split()[0::2][:2])

    def has(self, tag: str) -> bool:
        """See `Builder.has`."""
        return subprocess.run([*self._command, "images", "-q", tag], capture_output=True, check=False).returncode == 0

    def inputs(self, tag: str) -> str | None:
        """See `Builder.inputs`."""
        return (self._inspect(tag).Labels or {}).get(INPUTS_LABEL) if self.has(tag) else None

    def pull(self, image: str, report: Report) -> bool:
        """See `Builder.pull`. The watchdog is disarmed by the first line that only an answering registry causes."""
        argv = [*self._command, "pull", image]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            watchdog = threading.Timer(_FIRST_ANSWER_S, process.kill)
            watchdog.start()
            try:
                for line in process.stdout or ():
                    if line.startswith("Getting image source signatures"):
                        watchdog.cancel()
                    report(line.rstrip())
                return process.wait() == 0
            finally:
                watchdog.cancel()

    def import_tar(self, tarball: Path, tag: str, report: Report) -> None:
        """See `Builder.import_tar`."""
        container = capture([*self._command, "from", "scratch"], "buildah from").strip()
        try:
            run([*self._command, "add", "-q", container, str(tarball), "/"], "adding the base", report)
            run([*self._command, "commit", "-q", container, tag], "committing the base", report)
        finally:
            self._remove(container)

    def build(self, context: Path, tag: str, settings: Path, inputs: str, report: Report, *, fresh: bool) -> None:
        """See `Builder.build`. Isolation is chroot: it needs no runtime, and the build is trusted as root anyway."""
        argv = [*self._command, "bud", "--isolation", "chroot", "--layers", "--volume", f"{settings}:{MOUNT}:ro"]
        argv += [word for name, value in environment().items() for word in ("--env", f"{name}={value}")]
        argv += ["--label", f"{INPUTS_LABEL}={inputs}", "--tag", tag, *(["--no-cache"] if fresh else []), str(context)]
        run(argv, f"building {tag}", report, env={"TMPDIR": str(context.parent)}, keep_open=[self._lock])

    def export(self, tag: str, rootfs: Path, report: Report, like: Path | None) -> None:
        """See `Builder.export`."""
        with self._mounted(tag) as mounted:
            copy_tree(Path(mounted), rootfs, report, like)

    def config(self, tag: str) -> BuiltConfig:
        """See `Builder.config`."""
        config = self._inspect(tag)
        return BuiltConfig(env_of(config.Env or [], environment()), config.Entrypoint or [])

    def tidy(self) -> None:
        """See `Builder.tidy`: working containers are all a killed build can leave; layers stay, as cache."""
        for container in capture([*self._command, "containers", "-q"], "buildah containers").split():
            self._remove(container)

    def _inspect(self, tag: str) -> _OciConfig:
        text = capture([*self._command, "inspect", "--type", "image", tag], f"reading {tag}")
        return _Inspected.model_validate(json.loads(text)).OCIv1.config

    @contextmanager
    def _mounted(self, tag: str) -> Iterator[str]:
        container = capture([*self._command, "from", "--pull-never", tag], f"opening {tag}").strip()
        try:
            yield capture([*self._command, "mount", container], f"mounting {tag}").strip()
        finally:
            self._remove(container)

    def _remove(self, container: str) -> None:
        """Unmounts and deletes a working container."""
        answer = subprocess.run([*self._command, "rm", container], capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            raise ImageBuildFailed(f"buildah cannot remove its working container {container}: {answer.stderr.strip()}")
