"""What this machine needs to reach its package indexes, in one directory that builds can see and images never contain.

The directory is mounted read-only at `MOUNT` while a build's RUN steps work, and environment variables (`environment`)
point pip, apt, npm and TLS libraries at the files in it. Nothing of it is written into the tree; the variables are
taken out of the image's environment again. Proxy variables are passed by the builder itself, to RUN steps only.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from cloche_server.images.mirror import debian_lines
from cloche_server.images.process import Report

MOUNT: Final = "/run/cloche-build"
_CA_BUNDLES: Final = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
_CA_VARIABLES: Final = (
    "SSL_CERT_FILE",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "NODE_EXTRA_CA_CERTS",
)
_PIP_KEYS: Final = ("index-url", "extra-index-url", "find-links", "trusted-host", "proxy", "timeout", "no-index")
"""pip settings that say how to reach an index. Others (constraints, caches, targets) are this machine's own affairs."""
_APT_KEYS: Final = ("Acquire::http", "Acquire::https", "Acquire::Check-", "Acquire::Retries")


def environment() -> Mapping[str, str]:
    """Variables for RUN steps; their names must not stay in the image's environment."""
    return {
        **dict.fromkeys(_CA_VARIABLES, f"{MOUNT}/ca.pem"),
        "PIP_CONFIG_FILE": f"{MOUNT}/pip.conf",
        "APT_CONFIG": f"{MOUNT}/apt.conf",
        "NPM_CONFIG_USERCONFIG": f"{MOUNT}/npmrc",
    }


def write_settings(directory: Path, report: Report, *, debian: bool) -> None:
    """Fills ``directory``. ``debian``: the build stands on Debian 12, so apt may read this machine's mirrors."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o755)
    (directory / "ca.pem").write_bytes(_ca_bundle())
    (directory / "pip.conf").write_text(pip_conf(_pip_settings(), report))
    (directory / "npmrc").write_text(_npmrc())
    lines = debian_lines() if debian else []
    (directory / "sources.list").write_text("".join(f"{line}\n" for line in lines))
    (directory / "apt.conf").write_text("".join(f"{line}\n" for line in _apt_conf(own_sources=bool(lines))))


def _ca_bundle() -> bytes:
    chosen = [os.environ[name] for name in _CA_VARIABLES if os.environ.get(name)]
    for path in (*chosen, *_CA_BUNDLES):
        if os.path.isfile(path):
            return Path(path).read_bytes()
    return b""


def _pip_settings() -> Mapping[str, str]:
    """pip's effective settings, as pip itself adds them up from files and variables: key -> value."""
    query = [sys.executable, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    answer = subprocess.run(query, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    found: dict[str, str] = {}
    for line in answer.stdout.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.partition(".")
        # Later lines win: pip lists files before the environment.
        if section in {"global", "install", ":env:"} and key:
            found[key.replace("default-timeout", "timeout")] = "".join(shlex.split(value))
    return found


def pip_conf(settings: Mapping[str, str], report: Report) -> str:
    """A pip.conf with the index settings among ``settings``; values that are paths of this machine are left out."""
    lines = ["[global]"]
    for key in _PIP_KEYS:
        values = settings.get(key, "").split()
        local = [value for value in values if value.startswith(("/", "file:", ".", "~"))]
        usable = [value for value in values if value not in local]
        if local:
            report(f"pip's {key} {' '.join(local)} lies on this machine: not used inside the build")
        if usable:
            lines.append(f"{key} = {' '.join(usable)}")
    return "\n".join(lines) + "\n"


def _apt_conf(*, own_sources: bool) -> Iterator[str]:
    if shutil.which("apt-config"):
        dump = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, check=False).stdout
        yield from (line for line in dump.splitlines() if line.startswith(_APT_KEYS) and "CAInfo" not in line)
    yield f'Acquire::https::CAInfo "{MOUNT}/ca.pem";'
    if own_sources:
        yield f'Dir::Etc::sourcelist "{MOUNT}/sources.list";'
        yield 'Dir::Etc::sourceparts "/dev/null";'


def _npmrc() -> str:
    files = (Path("/etc/npmrc"), Path.home() / ".npmrc")
    text = "".join(path.read_text().rstrip("\n") + "\n" for path in files if path.is_file())
    registry = os.environ.get("NPM_CONFIG_REGISTRY")
    return text + (f"registry={registry}\n" if registry else "")
