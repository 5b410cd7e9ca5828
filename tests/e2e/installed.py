"""What tests carry into sandboxes: locked packages, fetched once and kept in a cache outside of the repository."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

SITES = Path(__file__).with_name("sites")
FETCH_S = 150


def vite_modules() -> Path:
    """The ``node_modules`` of an installed Vite."""

    def install(directory: Path) -> None:
        for name in ("package.json", "package-lock.json"):
            shutil.copy(SITES / "vite" / name, directory)
        _fetch(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], directory)

    return _kept("vite", SITES / "vite/package-lock.json", install) / "node_modules"


def wheels() -> Path:
    """A directory with the wheels of ``sites/requirements.txt``, for the Python of the image on this machine."""
    lock = SITES / "requirements.txt"

    def download(directory: Path) -> None:
        options = ["--quiet", "--only-binary=:all:", "--python-version=3.11", "--require-hashes", "-r", str(lock)]
        _fetch([sys.executable, "-m", "pip", "download", *options, "--dest", "."], directory)

    return _kept("wheels", lock, download)


def _kept(name: str, lock: Path, fill: Callable[[Path], None]) -> Path:
    """The directory of the cache for this state of the lock; it appears when it is whole."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cloche-tests"
    kept = cache / f"{name}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    if not kept.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as directory:
            filled = Path(directory) / name
            filled.mkdir()
            fill(filled)
            _keep(filled, kept)
    return kept


def _keep(filled: Path, kept: Path) -> None:
    try:
        filled.rename(kept)
    except OSError:  # another run, beside this one, was first
        if not kept.exists():
            raise


def _fetch(command: list[str], directory: Path) -> None:
    """Twice, if it must be: registries have bad moments, and fall silent."""
    for _ in range(2):
        try:
            done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False, timeout=FETCH_S)
        except subprocess.TimeoutExpired as error:
            said = str(error)
            continue
        if done.returncode == 0:
            return
        said = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
    raise AssertionError(f"{command[0]}: {said}")
