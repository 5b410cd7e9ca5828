"""Volumes on this machine: real images and real mounts, without sandboxes. tests/e2e/test_volumes.py has those."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from cloche.errors import Conflict, InternalError, InvalidRequest, LimitReached, NotFound, SandboxStartFailed
from cloche.models import Resources, Role, SandboxState, VolumeAttachment, VolumeCreate
from cloche_server.auth import Principal
from cloche_server.drivers import VolumeMount
from cloche_server.ids import new_sandbox_id
from cloche_server.state import Database, SandboxRow, SandboxStore, VolumeFilter, VolumeStore
from cloche_server.volumes import VolumeService
from cloche_server.volumes._attaching import check_targets
from cloche_server.volumes._mount_table import Mount, parse_mounts

from .conftest import Harness, harness
from .fake_driver import FakeDriver

ANN = Principal("key-a", "ann", Role.MEMBER)
BOB = Principal("key-b", "bob", Role.MEMBER)
ROOT = Principal("key-r", "root", Role.ADMIN)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


class Place:
    """A data directory and a run directory, and the servers' services over them, one after the other."""

    def __init__(self, directory: Path) -> None:
        self.images = directory / "data" / "volumes"
        self.mounts = directory / "run" / "volumes"
        (directory / "data").mkdir()
        self.database = Database.open(directory / "data" / "cloche.db")
        self.sandboxes = SandboxStore(self.database)
        self.store = VolumeStore(self.database)

    async def service(self, limit: int = 100) -> VolumeService:
        made = VolumeService(self.store, self.images, self.mounts, limit)
        await made.prepare()
        return made

    def sandbox(self, volume_id: str, state: SandboxState = SandboxState.CREATING, path: str = "/data") -> SandboxRow:
        row = SandboxRow(
            id=new_sandbox_id(),
            owner="ann",
            name=None,
            state=state,
            image="python",
            image_digest="sha256:0",
            driver="runc",
            isolation="none",
            capabilities=[],
            epoch="e",
            token_hash="h",
            resources=Resources(),
            sudo=True,
            env={},
            labels={},
            metadata={},
            created_us=1,
            volumes=[VolumeAttachment(volume=volume_id, path=path)],
        )
        self.sandboxes.insert(row)
        return row

    def mounted(self) -> list[str]:
        """Mount points below ours, by name, as the kernel has them."""
        table = parse_mounts(Path("/proc/self/mountinfo").read_text())
        return [mount.point.name for mount in table if mount.point.is_relative_to(self.mounts)]

    def loops(self) -> list[str]:
        """Loop devices over our images."""
        out = subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout
        return [line for line in out.splitlines() if str(self.images) in line]

    def unmount_all(self) -> None:
        for name in reversed(self.mounted()):
            subprocess.run(["umount", str(self.mounts / name)], check=False)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    made.unmount_all()
    made.database.close()
    assert made.mounted() == []


@pytest.fixture
async def service(place: Place) -> AsyncIterator[VolumeService]:
    made = await place.service()
    yield made
    await made.close()


async def until(true: Callable[[], bool], bound_s: float = 60) -> None:
    async with asyncio.timeout(bound_s):
        while not true():
            await asyncio.sleep(0.02)


def wanted(name: str = "data", size_mb: int = 16, **more: object) -> VolumeCreate:
    return VolumeCreate.model_validate({"name": name, "size_mb": size_mb, **more})


# -- pure parts


def test_the_mount_table_is_read_with_its_escapes() -> None:
    text = (
        "27 1 259:0 / / rw,relatime - ext4 /dev/root rw\n"
        "40 27 7:0 / /run/cl\\040x/volumes/vol-a rw,nosuid shared:3 - ext4 /dev/loop0 rw\n"
    )
    assert parse_mounts(text) == [
        Mount(Path("/"), "/dev/root"),
        Mount(Path("/run/cl x/volumes/vol-a"), "/dev/loop0"),
    ]


@pytest.mark.parametrize("path", ["/data", "/workspace", "/workspace/data", "/home/user/x", "/var/lib/x", "/tmp", "/ä"])
def test_directories_of_the_user_take_a_volume(path: str) -> None:
    check_targets([VolumeAttachment(volume="data", path=path)])


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/proc", "/proc/1", "/sys", "/dev/shm", "/run", "/run/cloche", "/run/cloche/x", "/opt", "/opt/cloche"),
        *("/etc/ssl", "/usr/lib", "/lib64", "/var/run/cloche", "/var/lock"),
        *("/data/", "//data", "/data/../etc", "/./data", "/a\nb", f"/{'x' * 256}", f"/{'ä' * 128}"),
    ],
)
def test_what_the_sandbox_needs_for_itself_takes_none(path: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_targets([VolumeAttachment(volume="data", path=path)])
    assert caught.value.details["path"] == path


def test_two_volumes_are_beside_each_other_never_within() -> None:
    def check(*paths: str) -> None:
        check_targets([VolumeAttachment(volume="data", path=path) for path in paths])

    check("/data", "/data-2", "/data2")
    for paths in (("/data", "/data"), ("/data/a/b", "/data"), ("/data", "/data-2", "/data/x")):
        with pytest.raises(InvalidRequest, match="volume already"):
            check(*paths)


# -- making and deleting


@needs_root
async def test_a_volume_is_empty_sparse_and_belongs_to_the_user(place: Place, service: VolumeService) -> None:
    made = await service.create("ann", wanted(size_mb=1024))
    image = place.images / f"{made.id}.img"
    assert image.stat().st_size == 1024 * 1024 * 1024
    assert image.stat().st_blocks * 512 < 20 * 1024 * 1024
    assert image.stat().st_mode & 0o777 == 0o600
    place.sandbox(made.id)
    mounts = await service.mounts("ann", [VolumeAttachment(volume=made.id, path="/data", read_only=True)])
    assert mounts == [VolumeMount(place.mounts / made.id, "/data", read_only=True)]
    root = mounts[0].source
    assert list(root.iterdir()) == []
    assert (root.stat().st_uid, root.stat().st_gid) == (1000, 1000)
    (line,) = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f"/{made.id} " in line]
    assert {"nosuid", "nodev"} <= set(line.split(" ")[5].split(","))


@needs_root
async def test_a_full_volume_harms_nothing_beside_it(place: Place, service: VolumeService) -> None:
    small, other = await service.create("ann", wanted()), await service.create("ann", wanted("other"))
    place.sandbox(small.id)
    place.sandbox(other.id)
    first, second = [
        mount.source
        for mount in await service.mounts(
            "ann", [VolumeAttachment(volume=small.id, path="/a"), VolumeAttachment(volume=other.id, path="/b")]
        )
    ]
    with pytest.raises(OSError, match="No space left"):
        (first / "big").write_bytes(bytes(32 * 1024 * 1024))
    used = service.get(ANN, "data").used_bytes
    assert 10 * 1024 * 1024 < used <= 16 * 1024 * 1024
    (second / "file").write_text("fits")
    (first / "big").unlink()
    (first / "small").write_text("again")


@needs_root
async def test_names_belong_to_owners_and_foreign_volumes_do_not_exist(service: VolumeService) -> None:
    made = await service.create("ann", wanted(labels={"team": "x"}))
    await service.create("bob", wanted())
    with pytest.raises(Conflict):
        await service.create("ann", wanted())
    assert service.get(ANN, "data").id == service.get(ANN, made.id).id == made.id
    assert service.get(BOB, "data").id != made.id
    assert service.get(ROOT, made.id).owner == "ann"
    for reference in (made.id, "nothing"):
        with pytest.raises(NotFound):
            service.get(BOB, reference)
        with pytest.raises(NotFound):
            await service.delete(BOB, reference)
        with pytest.raises(NotFound):
            service.resolve("bob", [VolumeAttachment(volume=reference, path="/data")])
    assert service.resolve("ann", [VolumeAttachment(volume="data", path="/data")])[0].volume == made.id
    assert [v.id for v in service.page(VolumeFilter(labels={"team": "x"}), 50, None)[0]] == [made.id]
    assert len(service.page(VolumeFilter(), 50, None)[0]) == 2


@needs_root
async def test_two_creates_of_one_name_leave_one_volume(place: Place, service: VolumeService) -> None:
    results = await asyncio.gather(*(service.create("ann", wanted()) for _ in range(3)), return_exceptions=True)
    assert sorted(type(result).__name__ for result in results) == ["Conflict", "Conflict", "Volume"]
    assert len(list(place.images.iterdir())) == 1


@needs_root
async def test_an_owner_has_so_many_volumes_and_no_more(place: Place) -> None:
    service = await place.service(limit=1)
    await service.create("ann", wanted("one"))
    with pytest.raises(LimitReached):
        await service.create("ann", wanted("two"))
    await service.create("bob", wanted("one"))
    await service.delete(ANN, "one")
    await service.create("ann", wanted("two"))
    await service.close()


@needs_root
async def test_a_create_that_fails_leaves_nothing(
    place: Place, service: VolumeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise InternalError("mkfs.ext4 failed")

    with monkeypatch.context() as patch:
        patch.setattr("cloche_server.volumes._file_system._run", broken)
        with pytest.raises(InternalError):
            await service.create("ann", wanted())
    assert list(place.images.iterdir()) == []
    await service.create("ann", wanted())


@needs_root
async def test_a_volume_is_not_deleted_while_a_sandbox_has_it(place: Place, service: VolumeService) -> None:
    made = await service.create("ann", wanted())
    for state in (SandboxState.CREATING, SandboxState.SUSPENDED, SandboxState.STOPPED):
        row = place.sandbox(made.id, state)
        with pytest.raises(Conflict) as caught:
            await service.delete(ANN, "data")
        assert caught.value.details["sandboxes"] == [row.id]
        assert service.get(ANN, "data").attached_to == [row.id]
        place.sandboxes.update(row, state=SandboxState.DELETED)
    place.sandbox(made.id, SandboxState.FAILED)  # it never runs again
    assert (await service.delete(ANN, "data")).id == made.id
    assert list(place.images.iterdir()) == []
    with pytest.raises(NotFound):
        service.get(ANN, "data")


# -- mounted when needed, and no longer


@needs_root
async def test_a_volume_is_mounted_once_for_all_and_unmounted_after_the_last(
    place: Place, service: VolumeService
) -> None:
    made = await service.create("ann", wanted())
    assert place.mounted() == []
    rows = [place.sandbox(made.id) for _ in range(2)]
    together = await asyncio.gather(*(service.mounts("ann", row.volumes) for row in rows))
    assert together[0] == together[1]
    assert place.mounted() == [made.id]
    (together[0][0].source / "file").write_text("x" * 100_000)
    place.sandboxes.update(rows[0], state=SandboxState.DELETED)
    await service.sweep()
    assert place.mounted() == [made.id]
    place.sandboxes.update(rows[1], state=SandboxState.SUSPENDED)
    await service.sweep()
    assert place.mounted() == []
    await until(lambda: place.loops() == [])
    assert service.get(ANN, "data").used_bytes >= 100_000
    (again,) = await service.mounts("ann", rows[1].volumes)
    assert (again.source / "file").read_text() == "x" * 100_000


@needs_root
async def test_the_service_sweeps_by_itself(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloche_server.volumes._service.SWEEP_S", 0.05)
    service = await place.service()
    made = await service.create("ann", wanted())
    row = place.sandbox(made.id)
    await service.mounts("ann", row.volumes)
    place.sandboxes.update(row, state=SandboxState.DELETED)
    await until(lambda: place.mounted() == [])
    await service.close()
    assert place.mounted() == []


@needs_root
@pytest.mark.expected_logs("could not be unmounted")
async def test_a_volume_in_use_on_the_host_is_unmounted_by_a_later_sweep(place: Place, service: VolumeService) -> None:
    made = await service.create("ann", wanted())
    row = place.sandbox(made.id)
    (mount,) = await service.mounts("ann", row.volumes)
    place.sandboxes.update(row, state=SandboxState.DELETED)
    descriptor = os.open(mount.source, os.O_RDONLY)
    try:
        await service.sweep()
        assert place.mounted() == [made.id]
    finally:
        os.close(descriptor)
    await service.sweep()
    assert place.mounted() == []


@needs_root
async def test_a_server_that_was_killed_leaves_mounts_that_the_next_one_uses(place: Place) -> None:
    killed = await place.service()
    assert killed._sweeping is not None
    killed._sweeping.cancel()  # else it sweeps beside the next one
    kept, gone = await killed.create("ann", wanted("kept")), await killed.create("ann", wanted("gone"))
    rows = [place.sandbox(kept.id, SandboxState.RUNNING), place.sandbox(gone.id, SandboxState.RUNNING)]
    (mount,) = await killed.mounts("ann", rows[0].volumes)
    (mount.source / "file").write_text("here")
    await killed.mounts("ann", rows[1].volumes)
    place.sandboxes.update(rows[1], state=SandboxState.DELETED)
    place.store.delete(gone.id)
    (place.images / "vol-orphan000000.img").write_bytes(b"of a create that was cut short")

    service = await place.service()
    assert place.mounted() == [kept.id]
    assert [path.name for path in place.images.iterdir()] == [f"{kept.id}.img"]
    assert await service.mounts("ann", rows[0].volumes) == [mount]
    assert (mount.source / "file").read_text() == "here"
    assert place.mounted() == [kept.id]
    await until(lambda: len(place.loops()) == 1)  # the kernel gives a loop device back a moment after the mount
    place.sandboxes.update(rows[0], state=SandboxState.DELETED)
    await service.close()
    assert place.mounted() == []


@needs_root
async def test_a_mount_of_something_else_is_undone_at_start(place: Place) -> None:
    first = await place.service()
    made = await first.create("ann", wanted())
    await first.close()
    point = place.mounts / made.id
    point.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(point)], check=True)
    assert place.mounted() == [made.id]
    service = await place.service()
    assert place.mounted() == []
    (mount,) = await service.mounts("ann", place.sandbox(made.id).volumes)
    assert mount.source.stat().st_uid == 1000
    await service.close()


@needs_root
async def test_unmounting_reaches_the_copies_in_other_mount_namespaces(place: Place, service: VolumeService) -> None:
    """A sandbox is started in a copy of the mount table. Where the host's root is a private mount, unmounting alone leaves the
    copy, with its loop device, until the sandbox ends."""
    made = await service.create("ann", wanted())
    row = place.sandbox(made.id)
    await service.mounts("ann", row.volumes)
    command = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", "echo ready; exec sleep 60"]
    bystander = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        assert bystander.stdout is not None
        assert await bystander.stdout.readline() == b"ready\n"
        place.sandboxes.update(row, state=SandboxState.DELETED)
        await service.sweep()
        await until(lambda: place.loops() == [])
    finally:
        bystander.kill()
        await bystander.communicate()  # and its pipe is closed


@needs_root
async def test_a_volume_deleted_under_a_snapshot_is_not_found_by_its_sandbox(
    place: Place, service: VolumeService
) -> None:
    made = await service.create("ann", wanted())
    await service.delete(ANN, made.id)
    row = place.sandbox(made.id)
    with pytest.raises(NotFound, match=made.id):
        await service.mounts("ann", row.volumes)
    assert place.mounted() == []


@needs_root
async def test_a_row_that_names_a_volume_of_another_owner_does_not_get_it(place: Place, service: VolumeService) -> None:
    """A snapshot that was exported names volumes by id, and anybody may import it."""
    made = await service.create("ann", wanted())
    attachments = [VolumeAttachment(volume=made.id, path="/data")]
    place.sandbox(made.id)
    with pytest.raises(NotFound, match=made.id):
        await service.mounts("bob", attachments)
    assert place.mounted() == []
    assert len(await service.mounts("ann", attachments)) == 1


# -- over HTTP


@needs_root
async def test_volumes_over_http(cloche: Harness) -> None:
    response = await cloche.client.post("/v1/volumes", json={"name": "data", "size_mb": 16, "labels": {"a": "b"}})
    assert response.status_code == 201, response.text
    made = response.json()
    assert response.headers["Location"] == f"/v1/volumes/{made['id']}"
    assert (made["attached_to"], made["size_mb"], made["owner"]) == ([], 16, "admin")
    for reference in ("data", made["id"]):
        assert (await cloche.client.get(f"/v1/volumes/{reference}")).json() == made
    assert (await cloche.client.get("/v1/volumes")).json() == {"items": [made], "next_page": None}
    async with cloche.client_of("ann") as ann, cloche.client_of("admin", Role.VIEWER) as viewer:
        assert (await ann.get(f"/v1/volumes/{made['id']}")).status_code == 404
        assert (await ann.get("/v1/volumes?owner=admin")).status_code == 403
        assert (await ann.get("/v1/volumes")).json()["items"] == []
        assert (await viewer.get("/v1/volumes/data")).status_code == 200
        assert (await viewer.delete("/v1/volumes/data")).status_code == 403
    assert (await cloche.client.post("/v1/volumes", json={"name": "data"})).status_code == 409
    assert (await cloche.client.post("/v1/volumes", json={"name": "tiny", "size_mb": 15})).status_code == 400
    assert (await cloche.client.delete("/v1/volumes/data")).json() == made
    assert (await cloche.client.delete("/v1/volumes/data")).status_code == 404


@needs_root
async def test_volumes_come_in_pages(cloche: Harness) -> None:
    names = [f"v{n}" for n in range(3)]
    for name in names:
        assert (await cloche.client.post("/v1/volumes", json={"name": name, "size_mb": 16})).status_code == 201
    first = (await cloche.client.get("/v1/volumes?limit=2")).json()
    second = (await cloche.client.get("/v1/volumes", params={"limit": 2, "page": first["next_page"]})).json()
    assert [item["name"] for item in [*first["items"], *second["items"]]] == names[::-1]
    assert second["next_page"] is None


@needs_root
async def test_a_sandbox_gets_its_volumes_from_a_driver_that_has_them(short_dir: Path) -> None:
    body = {"volumes": [{"volume": "data", "path": "/data"}]}
    async with harness(short_dir) as cloche:
        assert (await cloche.client.post("/v1/sandboxes", json=body)).status_code == 404
        await cloche.client.post("/v1/volumes", json={"name": "data", "size_mb": 16})
        sandbox_id = await cloche.sandbox(**body)
        point = cloche.settings.volume_mounts_dir / (await cloche.client.get("/v1/volumes/data")).json()["id"]
        assert cloche.driver.specs[sandbox_id].volumes == (VolumeMount(point, "/data"),)
        assert point.is_mount()
        assert (await cloche.client.delete("/v1/volumes/data")).status_code == 409
        cloche.driver.start_error = SandboxStartFailed("no")
        assert (await cloche.client.post("/v1/sandboxes", json=body)).status_code == 503
        await cloche.client.delete(f"/v1/sandboxes/{sandbox_id}")
        assert (await cloche.client.delete("/v1/volumes/data")).status_code == 200
        assert not point.exists()
    async with harness(short_dir, FakeDriver(capabilities=frozenset())) as cloche:
        await cloche.client.post("/v1/volumes", json={"name": "data", "size_mb": 16})
        answer = await cloche.client.post("/v1/sandboxes", json=body)
        assert (answer.status_code, answer.json()["code"]) == (409, "unsupported_capability")
