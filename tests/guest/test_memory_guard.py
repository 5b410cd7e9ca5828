"""The memory guard's arithmetic; its work under gVisor is in tests/e2e."""

from __future__ import annotations

import pytest

from cloche_guest.memory_guard import FILL_RATE, MEBIBYTE, QUIET_LOOKS, QUIET_RATE, Memory, Quiet, parse_memory


def test_meminfo_is_read() -> None:
    text = "MemTotal:        2097152 kB\nMemFree:         100 kB\nMemAvailable:    1048576 kB\n"
    assert parse_memory(text) == Memory(2048 * MEBIBYTE, 1024 * MEBIBYTE)


def test_meminfo_without_the_lines_is_refused() -> None:
    with pytest.raises(ValueError, match="MemAvailable"):
        parse_memory("MemTotal: 1 kB\n")


@pytest.mark.parametrize(("total", "reserve"), [(128, 48), (1024, 102.4), (8192, 256)])
def test_the_reserve_is_a_tenth_within_bounds(total: int, reserve: float) -> None:
    assert Memory(total * MEBIBYTE, 0).reserve == int(reserve * MEBIBYTE)


@pytest.mark.parametrize("available", [49, 60, 100, 300, 1000, 2000])
def test_it_looks_again_before_the_memory_above_the_reserve_can_be_gone(available: int) -> None:
    memory = Memory(480 * MEBIBYTE, available * MEBIBYTE)
    above = memory.available - memory.reserve
    assert not memory.is_short
    assert memory.pause_s <= max(above / FILL_RATE, 0.004)


def test_short_means_below_the_reserve() -> None:
    assert Memory(1024 * MEBIBYTE, 102 * MEBIBYTE).is_short
    assert not Memory(1024 * MEBIBYTE, 103 * MEBIBYTE).is_short


@pytest.mark.parametrize("available", [49, 60, 100, 300, 1000, 2000])
def test_where_nothing_runs_it_looks_later_and_still_in_time(available: int) -> None:
    memory = Memory(480 * MEBIBYTE, available * MEBIBYTE)
    assert (
        memory.pause_s <= memory.quiet_pause_s <= max((memory.available - memory.reserve) / QUIET_RATE, memory.pause_s)
    )


def test_quiet_is_memory_that_stays_as_it_is() -> None:
    quiet = Quiet()
    looks = [quiet.look(Memory(480 * MEBIBYTE, 300 * MEBIBYTE + at)) for at in range(QUIET_LOOKS + 1)]
    assert looks == [False] * QUIET_LOOKS + [True]
    assert not quiet.look(Memory(480 * MEBIBYTE, 298 * MEBIBYTE))
