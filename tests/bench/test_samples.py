"""The arithmetic of the benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from bench._samples import Samples, rows_of


def test_p95_is_a_time_that_was_measured() -> None:
    assert Samples("x", [float(n) for n in range(1, 101)]).p95 == 95
    assert Samples("x", [1.0, 9.0]).p95 == 9
    assert Samples("x", [3.0]).p95 == 3


def test_ratios_are_of_medians() -> None:
    rows = rows_of([Samples("base", [1, 2, 3]), Samples("ours", [3, 3, 30]), Samples("empty")], "base")
    assert [(row.name, row.n, row.ratio) for row in rows] == [("base", 3, 1.0), ("ours", 3, 1.5)]


def test_without_a_baseline_there_are_no_ratios() -> None:
    assert rows_of([Samples("a", [1.0])])[0].ratio is None


def test_seconds_become_milliseconds() -> None:
    samples = Samples("a")
    samples.add_s(0.5)
    assert samples.median == pytest.approx(500)
