"""Feeds: readers wake, end, and never hold the producer up."""

from __future__ import annotations

import asyncio
import random

import pytest

from cloche.journal import Cursor, Gap, Journal, Record
from cloche.journal_feed import JournalFeed


def new_feed(max_bytes: int = 1000, max_records: int = 1000) -> JournalFeed:
    return JournalFeed(Journal("e1", max_bytes=max_bytes, max_records=max_records, record_bytes=16))


async def collect(feed: JournalFeed, cursor: Cursor) -> list[Record | Gap]:
    return [item async for item in feed.follow(cursor)]


async def test_a_reader_gets_what_was_there_before_and_what_comes_later() -> None:
    feed = new_feed()
    feed.append("t", b"old")
    reader = asyncio.create_task(collect(feed, feed.journal.start))
    await asyncio.sleep(0)
    feed.append("t", b"new")
    feed.close()
    assert [item.data for item in await reader if isinstance(item, Record)] == [b"old", b"new"]


async def test_waiting_is_bounded_and_says_which_way_it_ended() -> None:
    feed = new_feed()
    assert await feed.wait_beyond(feed.journal.head, timeout_s=0.01) is False
    feed.append("t", b"x")
    assert await feed.wait_beyond(feed.journal.start, timeout_s=10) is True


async def test_appending_after_the_end_is_a_defect() -> None:
    feed = new_feed()
    feed.close()
    with pytest.raises(RuntimeError, match="closed"):
        feed.append("t", b"x")


async def test_a_slow_reader_meets_a_gap_and_the_producer_does_not_wait() -> None:
    feed = new_feed(max_bytes=16)
    for _ in range(100):
        feed.append("t", b"12345678")
    feed.close()
    items = await collect(feed, feed.journal.start)
    assert items[0] == Gap(98, 784, Cursor("e1", 98, 784))
    assert len(items) == 3


async def test_readers_cut_at_random_resume_without_loss_or_repeat() -> None:
    """Twenty readers, each leaving at a random moment and coming back with the cursor it has."""
    rng = random.Random(20261129)
    feed = new_feed(max_bytes=200_000, max_records=20_000)
    sent = [rng.randbytes(rng.randrange(1, 16)) for _ in range(5_000)]

    async def produce() -> None:
        for chunk in sent:
            feed.append("t", chunk)
            if rng.random() < 0.1:
                await asyncio.sleep(0)
        feed.close()

    async def read() -> bytes:
        received, cursor = b"", feed.journal.start
        while not (feed.closed and cursor == feed.journal.head):
            async for item in feed.follow(feed.journal.parse(str(cursor))):
                assert isinstance(item, Record)
                received += item.data
                cursor = item.cursor
                if rng.random() < 0.02:
                    break
        return received

    results = await asyncio.gather(produce(), *(read() for _ in range(20)))
    assert all(result == b"".join(sent) for result in results[1:])
