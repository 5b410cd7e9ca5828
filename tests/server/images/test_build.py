"""Real builds: most of an image made from nothing (a second each), some over the Debian base."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from cloche_server.images import (
    BuildLockTimeout,
    Image,
    ImageBuildFailed,
    ImageNotFound,
    ImageStore,
    build_image,
)
from cloche_server.images.host_settings import MOUNT, environment
from cloche_server.images.paths import checkout_root, default_cache_dir

from .conftest import MakeDirectory

NOTHING = "FROM scratch\nCOPY data /data\nENV GREETING=hello\n"


def test_a_build_makes_a_tree_with_metadata(store: ImageStore, make_directory: MakeDirectory, lines: list[str]) -> None:
    image = build_image(store, "tiny", make_directory("tiny", NOTHING, data="1"), lines.append)
    assert (image.rootfs / "data").read_text() == "1"
    assert image.env["GREETING"] == "hello"
    assert image.metadata.parent == "scratch"
    assert store.resolve("tiny") == image
    assert image.rootfs.stat().st_mode & 0o777 == 0o755


def test_an_unchanged_directory_is_not_built_again(
    store: ImageStore, make_directory: MakeDirectory, lines: list[str]
) -> None:
    directory = make_directory("tiny", NOTHING, data="1")
    image = build_image(store, "tiny", directory, lines.append)
    lines.clear()
    assert build_image(store, "tiny", directory, lines.append) == image
    assert lines == [f"image tiny is up to date: {image.digest}"]


def test_a_changed_directory_moves_the_name_and_keeps_the_old_tree(
    store: ImageStore, make_directory: MakeDirectory, lines: list[str]
) -> None:
    old = build_image(store, "tiny", make_directory("tiny", NOTHING, data="1"), lines.append)
    new = build_image(store, "tiny", make_directory("tiny", NOTHING, data="2"), lines.append)
    assert (new.rootfs / "data").read_text() == "2"
    assert (old.rootfs / "data").read_text() == "1"


def test_a_failed_build_shows_the_builders_words_and_changes_nothing(
    store: ImageStore, make_directory: MakeDirectory, lines: list[str]
) -> None:
    image = build_image(store, "tiny", make_directory("tiny", NOTHING, data="1"), lines.append)
    directory = make_directory("tiny", "FROM localhost/cloche/base\nRUN echo the reason; exit 7\n")
    with pytest.raises(ImageBuildFailed, match="the reason") as caught:
        build_image(store, "tiny", directory, lines.append)
    output = caught.value.details["output"]
    assert isinstance(output, list)
    assert any("exit status 7" in str(line) for line in output)
    assert store.resolve("tiny") == image
    assert not any((store.root / "tmp").iterdir())


PROBE = f"""FROM localhost/cloche/base
RUN env > /env; cat {MOUNT}/* > /dev/null && ls {MOUNT} > /seen; apt-get update -qq && rm -rf /var/lib/apt/lists/*
RUN rm -f /env
USER user
RUN echo mine > /workspace/mine
"""


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Built over the Debian base with settings of a machine that names itself in them. Once: it asks apt's servers."""
    root = tmp_path_factory.mktemp("probe")
    directory = root / "sandbox_images" / "probe"
    directory.mkdir(parents=True)
    (directory.parent / "base").symlink_to(checkout_root() / "sandbox_images/base")
    (directory / "Dockerfile").write_text(PROBE)
    bundle = root / "bundle.pem"
    bundle.write_text(Path("/etc/ssl/certs/ca-certificates.crt").read_text() + "\n# cloche-test-marker\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SSL_CERT_FILE", str(bundle))
        patched.setenv("PIP_INDEX_URL", "https://cloche-test-marker.example/simple")
        patched.setenv("HTTP_PROXY", "")
        return build_image(ImageStore(root / "data"), "probe", directory, lambda _: None)


def test_settings_of_this_machine_are_seen_by_the_build_and_are_not_in_the_image(probe: Image) -> None:
    assert (probe.rootfs / "seen").read_text().split() == ["apt.conf", "ca.pem", "npmrc", "pip.conf", "sources.list"]
    assert not set(environment()) & set(probe.env)
    assert not (probe.rootfs / MOUNT.lstrip("/")).exists()
    assert not (probe.rootfs / "etc/pip.conf").exists()
    found = subprocess.run(["grep", "-rlIs", "cloche-test-marker", str(probe.rootfs)], capture_output=True, check=False)
    assert found.stdout == b""


def test_owners_modes_and_files_of_the_base_are_as_they_must_be(probe: Image) -> None:
    root = probe.rootfs
    assert (root / "workspace/mine").stat().st_uid == 1000
    assert (root / "etc/passwd").stat().st_uid == 0
    privileged = [path for path in root.rglob("*") if not path.is_symlink() and path.is_file() and is_privileged(path)]
    assert privileged == []
    assert "nameserver 127.0.0.1" in (root / "etc/resolv.conf").read_text()
    assert "localhost" in (root / "etc/hosts").read_text()
    assert (root / "etc/machine-id").read_text() == ""
    assert list((root / "etc/ssh").glob("ssh_host_*")) == []
    assert [path.name for path in (root / "run").iterdir()] == ["cloche"]


def is_privileged(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o6000)


KILLED = """
import sys
from pathlib import Path
from cloche_server.images import ImageStore, build_image
build_image(ImageStore(Path(sys.argv[1])), "slow", Path(sys.argv[2]), lambda line: print(line, flush=True))
"""


def test_a_killed_build_leaves_nothing_that_the_next_one_does_not_clear(
    store: ImageStore, make_directory: MakeDirectory, lines: list[str]
) -> None:
    sleep = ("sleep", f"6000.{os.getpid()}")  # nobody else's on this machine
    directory = make_directory("slow", f"FROM localhost/cloche/base\nRUN echo begun; {' '.join(sleep)}\n")
    argv = [sys.executable, "-c", KILLED, str(store.root.parent), str(directory)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line.rstrip() == "begun" for line in process.stdout)
        store.new_tree()
        process.send_signal(signal.SIGKILL)
    with pytest.raises(ImageNotFound):
        store.resolve("slow")
    started = time.monotonic()
    image = build_image(store, "slow", make_directory("slow", NOTHING, data="1"), lines.append)
    assert time.monotonic() - started < 120, "the killed build's builder went on"
    # The commands of a RUN step once went on after the kill of the builder, in a root directory that was gone.
    assert "".join(f"{word}\0" for word in sleep) not in running_commands()
    assert not any((store.root / "tmp").iterdir())
    assert store.resolve("slow") == image
    assert mounts_under(default_cache_dir()) == []


def running_commands() -> list[str]:
    commands = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            commands.append(path.read_text(errors="replace"))
    return commands


def mounts_under(directory: Path) -> list[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    # The overlay store itself is bind-mounted on itself by containers/storage; that is not a leftover.
    return [line for line in lines if f"{directory}/buildah/overlay/" in line.split()[4]]


def test_two_builds_at_once_wait_for_each_other_and_say_so(
    store: ImageStore, make_directory: MakeDirectory, tmp_path: Path
) -> None:
    directory = make_directory("tiny", NOTHING, data="1")
    cache = tmp_path / "cache"
    heard: list[list[str]] = [[], []]
    waits = threading.Event()

    def build(said: list[str]) -> None:
        def hear(line: str) -> None:
            said.append(line)
            if "waiting for it" in line:
                waits.set()
            elif "building image" in line:  # not over before the other one has come
                assert waits.wait(60)

        build_image(store, "tiny", directory, hear, cache_dir=cache)

    threads = [threading.Thread(target=build, args=(said,)) for said in heard]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    waited = [said for said in heard if any("waiting for it" in line for line in said)]
    built = [said for said in heard if any("building image" in line for line in said)]
    assert (len(waited), len(built)) == (1, 1)
    assert store.resolve("tiny").rootfs.is_dir()


def test_a_wait_for_the_lock_is_bounded(store: ImageStore, make_directory: MakeDirectory, tmp_path: Path) -> None:
    directory = make_directory("tiny", NOTHING, data="1")
    with (tmp_path / "build.lock").open("w") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)
        with pytest.raises(BuildLockTimeout, match="held"):
            build_image(store, "tiny", directory, lambda _: None, cache_dir=tmp_path, lock_wait_s=0.3)


def test_the_python_image_has_two_environments_with_two_owners_and_warm_caches(lines: list[str]) -> None:
    root = build_image(ImageStore(), "python", Path("sandbox_images/python"), lines.append).rootfs
    assert (root / "opt/venv/bin/python").lstat().st_uid == 1000
    assert (root / "opt/cloche/bin/python").lstat().st_uid == 0
    assert os.access(root / "usr/local/bin/sudo", os.X_OK)
    assert list((root / "home/user/.cache/matplotlib").glob("fontlist-*.json"))
    guest = root / "opt/cloche/lib/python3.11/site-packages/cloche_guest"
    assert list((guest / "__pycache__").glob("__init__.*.pyc"))
    writable = [name for name in os.listdir(guest) if (guest / name).stat().st_mode & 0o022]
    assert writable == []
    code = "import numpy, pandas, matplotlib, PIL, plotly, sklearn, requests, ipykernel; print('imported')"
    command = ["chroot", "--userspec=1000:1000", str(root), "/opt/venv/bin/python", "-Wignore", "-c", code]
    answer = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "HOME": "/home/user"}
    )
    assert answer.stdout == "imported\n", answer.stderr
    command = [
        "chroot",
        str(root),
        "/opt/cloche/bin/python",
        "-c",
        "import cloche_guest, jupyter_client; print('guest')",
    ]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "HOME": "/root"})
    assert answer.stdout == "guest\n", answer.stderr
