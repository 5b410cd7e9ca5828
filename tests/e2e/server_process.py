"""A real server in its own process, started as people start it: by the command line."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from cloche_server.images import ImageStore

START_S = 60.0


@dataclass
class ServerProcess:
    """``directory`` holds ``data`` and ``run``, and outlives the process: `start` after `kill` is a new server there."""

    directory: Path
    options: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    said: str = field(default="", repr=False)
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def data_dir(self) -> Path:
        return self.directory / "data"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def key(self) -> str:
        return (self.data_dir / "admin.key").read_text().strip()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=90, trust_env=False)

    def prepare(self) -> None:
        """The images of this machine, seen from a data directory of our own."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        images = self.data_dir / "images"
        if not images.exists():
            images.symlink_to(ImageStore().root)

    def start(self) -> None:
        self.prepare()
        self.said = ""
        command = [
            *(str(Path(sys.executable).with_name("cloche")), "serve", "--log-format", "json"),
            *("--data-dir", str(self.data_dir), "--run-dir", str(self.directory / "run"), "--port", str(self.port)),
            *self.options,
        ]
        out = self.directory / "server.out"
        with out.open("wb") as stdout, self.log.open("ab") as stderr:
            self.process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=os.environ | self.environ)
        deadline = time.monotonic() + START_S
        while not (found := re.search(r"listening on http://127\.0\.0\.1:(\d+) ", self.said)):
            self.said = out.read_text()
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"no server: {self.said}\n{self.log.read_text()[-4000:]}")
            time.sleep(0.02)
        self.port = int(found[1])

    def kill(self) -> None:
        """As a crash does: no warning."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self, bound_s: float = 60) -> int:
        """As an operator does; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(bound_s)

    def log_lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def remove_all(self) -> None:
        """Deletes every sandbox and stops."""
        if self.process is None or self.process.poll() is not None:
            self.start()
        with self.client() as client:
            for item in client.get("/v1/pools").json()["items"]:  # what is ready in them is in no list
                client.delete(f"/v1/pools/{item['name']}")
            for item in client.get("/v1/sandboxes?limit=200").json()["items"]:
                client.delete(f"/v1/sandboxes/{item['id']}")
        self._until_removed()
        self.stop()

    def _until_removed(self, bound_s: float = 60) -> None:
        """One that a pool was being filled with is removed once it is made."""
        deadline = time.monotonic() + bound_s
        while left := [path.name for driver in ("gvisor", "runc") for path in self.directory.glob(f"run/{driver}/*")]:
            assert time.monotonic() < deadline, f"left running: {left}"
            time.sleep(0.05)


def memory_kib(pid: int) -> int:
    """Resident memory of a process."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))
