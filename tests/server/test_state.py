"""The database: migrations, names, pages, keys, what idempotency keys have made."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, text

from cloche.errors import Conflict, InvalidRequest, NotFound, StorageFull
from cloche.models import Failure, KeyCreate, Resources, Role, SandboxState
from cloche_server.first_key import ensure_first_key
from cloche_server.ids import new_sandbox_id
from cloche_server.state import (
    Database,
    KeptAnswer,
    KeptAnswers,
    KeyStore,
    PageToken,
    SandboxFilter,
    SandboxRow,
    SandboxStore,
)
from cloche_server.state._database import migrate
from cloche_server.state._tables import metadata


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database.open(tmp_path / "cloche.db")
    yield opened
    opened.close()


def row(**changes: object) -> SandboxRow:
    made = SandboxRow(
        id=new_sandbox_id(),
        owner="ann",
        name=None,
        state=SandboxState.RUNNING,
        image="python",
        image_digest="sha256:0",
        driver="runc",
        isolation="none",
        capabilities=["limits"],
        epoch="e",
        token_hash="h",
        resources=Resources(),
        sudo=True,
        env={"A": "1"},
        labels={},
        metadata={"deep": [1, None]},
        created_us=1,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_migrations_lead_to_the_tables_of_the_code(database: Database) -> None:
    with database.transaction() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []


def test_the_file_is_private_and_opens_again(tmp_path: Path) -> None:
    path = tmp_path / "cloche.db"
    database = Database.open(path)
    stored = row(failure=Failure(reason="exit", message="x", exit_code=1))
    SandboxStore(database).insert(stored)
    for file in tmp_path.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    database.close()
    again = Database.open(path)
    assert SandboxStore(again).get(stored.id) == stored
    again.close()


def test_a_name_belongs_to_one_sandbox_of_an_owner_until_that_is_deleted(database: Database) -> None:
    store = SandboxStore(database)
    first = row(name="box")
    store.insert(first)
    store.insert(row(name="box", owner="bob"))
    with pytest.raises(Conflict):
        store.insert(row(name="box"))
    other = row()
    store.insert(other)
    with pytest.raises(Conflict):
        store.update(other, name="box")
    store.update(first, state=SandboxState.DELETED)
    store.update(other, name="box")
    found = store.find_by_name("ann", "box")
    assert found is not None
    assert found.id == other.id


def test_pages_do_not_shift_when_sandboxes_are_made_meanwhile(database: Database) -> None:
    store = SandboxStore(database)
    rows = [row(created_us=n // 2) for n in range(7)]
    for one in rows:
        store.insert(one)
    seen: list[str] = []
    page: str | None = None
    while True:
        items, page = store.list(SandboxFilter(), 2, PageToken.decode(page) if page else None)
        seen += [item.id for item in items]
        store.insert(row(created_us=1000 + len(seen)))
        if page is None:
            break
    assert sorted(seen) == sorted(one.id for one in rows)
    assert [next(r.created_us for r in rows if r.id == i) for i in seen] == [3, 2, 2, 1, 1, 0, 0]


def test_filters_combine_and_deleted_ones_are_left_out_unless_asked_for(database: Database) -> None:
    store = SandboxStore(database)
    wanted = row(labels={"team/x.y": "a'b", "env": "dev"}, name="box")
    store.insert(wanted)
    store.insert(row(labels={"env": "dev"}))
    store.insert(row(state=SandboxState.DELETED))

    def ids(**kwargs: object) -> list[str]:
        return [item.id for item in store.list(SandboxFilter(**kwargs), 50, None)[0]]  # type: ignore[arg-type]

    assert len(ids()) == 2
    assert ids(labels={"team/x.y": "a'b", "env": "dev"}) == [wanted.id]
    assert ids(labels={"env": "prod"}) == []
    assert ids(name="box") == [wanted.id]
    assert ids(owner="bob") == []
    assert len(ids(state=SandboxState.DELETED)) == 1


def test_a_revoked_key_is_unknown_at_once(database: Database) -> None:
    keys = KeyStore(database)
    key = keys.create(KeyCreate(owner="ann", role=Role.VIEWER), "clk_1")
    found = keys.find("clk_1")
    assert found is not None
    assert (found.owner, found.role) == ("ann", Role.VIEWER)
    assert keys.revoke(key.id).revoked_at is not None
    assert keys.revoke(key.id).revoked_at == keys.get(key.id).revoked_at
    assert keys.find("clk_1") is None
    assert keys.find("clk_2") is None
    with pytest.raises(NotFound):
        keys.revoke("key-aaaaaaaaaaaa")


def test_a_key_revoked_elsewhere_is_forgotten_after_two_seconds(database: Database) -> None:
    now = [0.0]
    here, elsewhere = KeyStore(database, monotonic=lambda: now[0]), KeyStore(database)
    key = here.create(KeyCreate(owner="ann"), "clk_1")
    assert here.find("clk_1") is not None
    elsewhere.revoke(key.id)
    now[0] = 2.1
    assert here.find("clk_1") is None


def test_keys_are_paged(database: Database) -> None:
    keys = KeyStore(database)
    made = {keys.create(KeyCreate(owner="ann"), f"clk_{n}").id for n in range(5)}
    first = keys.list(3, None)
    second = keys.list(3, first.next_page)
    assert {key.id for key in [*first.items, *second.items]} == made
    assert second.next_page is None
    with pytest.raises(InvalidRequest):
        keys.list(3, "nonsense")


def test_the_first_key_is_made_once_and_its_file_is_private(database: Database, tmp_path: Path) -> None:
    keys, path = KeyStore(database), tmp_path / "admin.key"
    path.write_text("left by a crash")
    assert ensure_first_key(keys, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = keys.find(path.read_text().strip())
    assert found is not None
    assert found.role is Role.ADMIN
    assert not ensure_first_key(keys, path)


def test_idempotency_keys_are_known_for_a_day(database: Database) -> None:
    now = [0]
    kept, answer = KeptAnswers(database, lambda: now[0]), KeptAnswer("h", {"id": "s"})
    kept.record("ann", "create", "k", answer)
    assert kept.find("ann", "create", "k") == answer
    assert kept.find("bob", "create", "k") is None
    assert kept.find("ann", "fork", "k") is None
    now[0] = 24 * 3600 * 1_000_000 + 1
    assert kept.find("ann", "create", "k") is None
    kept.record("ann", "create", "k", answer)
    kept.forget("ann", "create", "k")
    assert kept.find("ann", "create", "k") is None


def test_keys_of_creates_move_to_the_table_of_all_keys(tmp_path: Path) -> None:
    path = tmp_path / "cloche.db"
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        migrate(connection, "0007")
        connection.execute(text("INSERT INTO idempotency VALUES ('ann', 'k', 'h', 's', 5)"))
    engine.dispose()
    database = Database.open(path)
    assert KeptAnswers(database, lambda: 6).find("ann", "create", "k") == KeptAnswer("h", {"id": "s"})
    database.close()


def test_a_full_disk_is_said_and_nothing_is_kept_of_the_call(database: Database) -> None:
    """SQLite answers the same (SQLITE_FULL) when its page limit is reached as when the disk is full."""

    def limit_pages(count: int) -> None:
        with database.transaction() as connection:
            connection.execute(text(f"PRAGMA max_page_count = {count}"))

    store = SandboxStore(database)
    limit_pages(1)  # SQLite makes that: no more than there are
    big = row(metadata={"x": "y" * 100_000})
    with pytest.raises(StorageFull, match="disk is full"):
        store.insert(big)
    assert store.get(big.id) is None
    limit_pages(1_000_000)
    store.insert(big)
    assert store.get(big.id) == big
