"""Volumes in real sandboxes of both drivers, and what they leave on the machine: nothing. Usage of real sandboxes."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloche import Client, Conflict, InvalidRequest, NotFound, Sandbox
from cloche.models import VolumeAttachment

from .server_process import ServerProcess

FILL = """
import os
with open('/data/big', 'wb', buffering=0) as file:
    try:
        for _ in range(64): file.write(bytes(1 << 20))
    except OSError as error:
        print(error.strerror)
open('/workspace/beside', 'w').write('fits')
"""


def mounted(server: ServerProcess) -> list[str]:
    """Names of the volumes that are mounted on the host."""
    base = f"{(server.directory / 'run' / 'volumes').resolve()}/"
    points = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return sorted(point.removeprefix(base) for point in points if point.startswith(base))


def loops(server: ServerProcess) -> list[str]:
    out = subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout
    images = str((server.data_dir / "volumes").resolve())
    return [line for line in out.splitlines() if images in line]


def until(true: Callable[[], bool], bound_s: float = 60) -> None:
    deadline = time.monotonic() + bound_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def connected(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url, server.key) as client:
        yield client


def remove_volume(client: Client, server: ServerProcess) -> None:
    """With the sandboxes that have it; then nothing of it is left."""
    volume = client.volumes.get("data")
    for sandbox_id in volume.attached_to:
        Sandbox.connect(sandbox_id, client=client).delete()
    client.volumes.delete("data")
    directory = server.data_dir / "volumes"
    until(lambda: volume.id not in mounted(server) and not loops(server) and not [*directory.iterdir()])


@pytest.fixture
def volume_id(connected: Client, server: ServerProcess) -> Iterator[str]:
    """``data``, of 16 MiB."""
    yield connected.volumes.create("data", size_mb=16).id
    remove_volume(connected, server)


def test_a_volume_outlives_its_sandbox_and_moves_to_another_driver(
    connected: Client, volume_id: str, server: ServerProcess
) -> None:
    """One order of the drivers: tests/server/drivers/test_volumes.py has every pair of them."""
    with Sandbox.create(client=connected, driver="gvisor", volumes={"/data": "data"}) as first:
        assert first.info.volumes == [VolumeAttachment(volume=volume_id, path="/data")]
        assert connected.volumes.get("data").attached_to == [first.id]
        assert mounted(server) == [volume_id]
        assert first.exec("stat -c '%U:%G' /data && ls -A /data").stdout == "user:user\n"
        first.exec("mkdir /data/a && echo here > /data/a/file && chmod 640 /data/a/file").raise_for_error()
        with pytest.raises(Conflict) as caught:
            connected.volumes.delete("data")
        assert caught.value.details["sandboxes"] == [first.id]
    with Sandbox.create(client=connected, driver="runc", volumes={"/elsewhere": volume_id}) as second:
        found = second.exec("cat /elsewhere/a/file && stat -c '%U %a' /elsewhere/a/file")
        assert found.stdout == "here\nuser 640\n"
        second.exec("echo more >> /elsewhere/a/file").raise_for_error()


def test_two_sandboxes_write_one_volume_and_a_third_only_reads(connected: Client, volume_id: str) -> None:
    read_only = [VolumeAttachment(volume=volume_id, path="/data", read_only=True)]
    with (
        Sandbox.create(client=connected, driver="gvisor", volumes={"/data": "data"}) as one,
        Sandbox.create(client=connected, driver="runc", volumes={"/data": "data"}) as two,
        Sandbox.create(client=connected, driver="gvisor", volumes=read_only) as reader,
    ):
        one.exec("echo one > /data/one").raise_for_error()
        two.exec("echo two > /data/two").raise_for_error()
        for sandbox in (one, two, reader):
            assert sandbox.exec("cat /data/one /data/two").stdout == "one\ntwo\n"
        for user in ("user", "root"):
            refused = reader.exec("touch /data/three", user=user)
            assert refused.exit_code != 0
            assert "Read-only file system" in refused.stderr
        assert one.exec("ls /data").stdout == "one\ntwo\n"
        assert len(connected.volumes.get("data").attached_to) == 3


def test_a_full_volume_is_full_for_itself_alone(connected: Client, volume_id: str, driver: str) -> None:
    """superradcompany/microsandbox#1007: a guest could fill the host's disk through a shared mount."""
    with (
        Sandbox.create(client=connected, driver=driver, volumes={"/data": "data"}) as sandbox,
        Sandbox.create(client=connected, driver=driver) as bystander,
    ):
        assert sandbox.run(FILL).stdout == "No space left on device\n"
        assert sandbox.exec("cat /workspace/beside").stdout == "fits"
        assert 10 * 2**20 < connected.volumes.get(volume_id).used_bytes <= 16 * 2**20
        assert bystander.run("open('/workspace/x', 'w').write('y')").ok
        assert sandbox.exec("rm /data/big && echo again > /data/small && cat /data/small").stdout == "again\n"


def test_wrong_attachments_are_refused_before_anything_starts(connected: Client, volume_id: str) -> None:
    before = {one.id for one in connected.list_sandboxes()}
    for path in ("/", "/proc", "/dev", "/run/cloche", "/opt", "/data/../etc"):
        with pytest.raises(InvalidRequest, match="no volume can be at"):
            Sandbox.create(client=connected, volumes={path: "data"})
    with pytest.raises(InvalidRequest, match="volume already"):
        Sandbox.create(client=connected, volumes={"/data": "data", "/data/x": volume_id})
    with pytest.raises(NotFound, match="nothing"):
        Sandbox.create(client=connected, volumes={"/data": "nothing"})
    assert {one.id for one in connected.list_sandboxes()} <= before


def test_volumes_outlive_a_killed_server(own_server: ServerProcess) -> None:
    with Client(own_server.url, own_server.key, reconnect_s=60) as client:
        volume = client.volumes.create("data", size_mb=16)
        sandbox = Sandbox.create(client=client, driver="gvisor", volumes={"/data": "data"})
        sandbox.exec("echo before > /data/file").raise_for_error()
        own_server.kill()
        assert mounted(own_server) == [volume.id]
        own_server.start()
        assert sandbox.exec("cat /data/file").stdout == "before\n"
        with Sandbox.create(client=client, driver="runc", volumes={"/data": "data"}) as second:
            assert second.exec("cat /data/file").stdout == "before\n"
            second.exec("echo after > /data/file").raise_for_error()
        assert mounted(own_server) == [volume.id]
        assert len(loops(own_server)) == 1
        assert sandbox.exec("cat /data/file").stdout == "after\n"
        remove_volume(client, own_server)
    assert mounted(own_server) == []


def test_sandboxes_at_rest_keep_their_volume(connected: Client, volume_id: str, server: ServerProcess) -> None:
    """Suspended and stopped ones: it is unmounted, and theirs."""
    with (
        Sandbox.create(client=connected, driver="gvisor", volumes={"/data": "data"}) as suspended,
        Sandbox.create(client=connected, driver="gvisor", volumes={"/data": "data"}) as stopped,
    ):
        suspended.run("open('/data/file', 'w').write('before')")
        assert stopped.exec("cat /data/file").stdout == "before"
        suspended.suspend()
        stopped.stop()
        until(lambda: mounted(server) == [])
        assert connected.volumes.get("data").used_bytes > 0
        with pytest.raises(Conflict) as caught:
            connected.volumes.delete("data")
        assert set(caught.value.details["sandboxes"]) == {suspended.id, stopped.id}
        with Sandbox.create(client=connected, driver="runc", volumes={"/data": "data"}) as other:
            other.exec("echo meanwhile > /data/file").raise_for_error()
        for sandbox, seen in ((suspended, ["file", "more"]), (stopped, ["evenmore", "file", "more"])):
            woken = Sandbox.connect(sandbox.id, client=connected)
            woken.exec(f"touch /data/{'more' if sandbox is suspended else 'evenmore'}").raise_for_error()
            assert woken.exec("cat /data/file; ls /data").stdout == "\n".join(["meanwhile", *seen, ""])
            assert mounted(server) == [volume_id]


def test_a_fork_has_the_volumes_of_its_source(connected: Client, volume_id: str, server: ServerProcess) -> None:
    with Sandbox.create(client=connected, driver="gvisor", volumes={"/data": "data"}) as source:
        source.run("open('/data/file', 'w').write('shared')")
        with server.client() as http:
            response = http.post(f"/v1/sandboxes/{source.id}/fork", json={"count": 1})
            assert response.status_code == 201, response.text
        (child_id,) = set(connected.volumes.get("data").attached_to) - {source.id}
        child = Sandbox.connect(child_id, client=connected)
        assert child.run("open('/data/file').read()").text == "'shared'"
        child.run("open('/data/file', 'a').write(' by both')")
        assert source.exec("cat /data/file").stdout == "shared by both"
        child.delete()


WORK = "for n in range(30_000_000): pass"
"""Some tenths of a second of processor time, inside and outside. Not a loop until the guest's clock says so: on gVisor that
goes on while the host runs somebody else."""


def test_usage_of_a_real_sandbox(connected: Client, driver: str) -> None:
    with Sandbox.create(client=connected, driver=driver) as sandbox:
        before = sandbox.usage()
        assert before.memory_bytes > 2**20
        assert before.processes > 0
        began = time.process_time()
        exec(WORK, {})
        worth_s = time.process_time() - began
        sandbox.run(WORK)
        sandbox.run("import os; f = open('/workspace/big', 'wb'); f.write(os.urandom(8 << 20)); f.flush(); os.fsync(f)")
        sandbox.run("x = b'x' * (4 << 20); print('y' * (1 << 20))")
        after = sandbox.usage()
        assert after.cpu_s - before.cpu_s >= worth_s / 2
        assert after.uplink_received_bytes - before.uplink_received_bytes >= 1 << 20
        assert after.memory_peak_bytes >= before.memory_bytes
        assert after.memory_mb_s > before.memory_mb_s
        assert after.running_s > before.running_s
        os.sync()  # of the host: its file systems give room to what is written, and do that after 30 s
        until(lambda: sandbox.usage().disk_bytes - before.disk_bytes >= 7 << 20)
        assert [one.cpu_s > 0 for one in connected.usage() if one.sandbox_id == sandbox.id] == [True]
    (gone,) = [one for one in connected.usage(state="deleted") if one.sandbox_id == sandbox.id]
    assert gone.cpu_s >= after.cpu_s
    assert (gone.memory_bytes, gone.processes, gone.disk_bytes) == (0, 0, 0)
