"""How many ready sandboxes a pool wants, and which one it hands out: rules without a server."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from cloche.models import Resources, SandboxCreate
from cloche_server.pools.parked import Parked, Stock
from cloche_server.pools.recipe import Recipe, may_be_warm
from cloche_server.pools.sizing import TIME_CONSTANT_S, Demand, Intents, Refills, stock_for, target

bounds = st.tuples(st.integers(0, 200), st.integers(0, 200)).map(sorted)
rates = st.floats(0, 1000)
refills = st.none() | st.floats(0.001, 100)

RECIPE = Recipe(None, "sha256:x", "gvisor", Resources(), True)
OTHER = Recipe("t@2")


@given(bounds, rates, refills, st.integers(0, 500), st.integers(-5, 500))
def test_a_target_is_within_its_bounds_and_the_room(
    least_most: list[int], rate: float, refill_s: float | None, intents: int, room: int
) -> None:
    least, most = least_most
    wanted = target(least, most, rate, refill_s, intents, room)
    assert wanted >= 0
    assert wanted <= max(0, room)
    assert wanted <= most
    assert wanted == max(0, room) or wanted >= least


@given(bounds, rates, rates, refills, st.integers(0, 100), st.integers(0, 100))
def test_more_demand_never_wants_fewer(
    least_most: list[int], rate: float, more: float, refill_s: float | None, intents: int, extra: int
) -> None:
    least, most = least_most
    before = target(least, most, rate, refill_s, intents, 1000)
    assert target(least, most, rate + more, refill_s, intents, 1000) >= before
    assert target(least, most, rate, refill_s, intents + extra, 1000) >= before


def test_a_pool_nobody_asks_for_wants_its_minimum() -> None:
    assert target(2, 50, 0.0, 0.3, 0, 1000) == 2
    assert target(0, 50, 0.0, 0.3, 0, 1000) == 0


def test_refills_that_cannot_keep_up_want_all_there_may_be() -> None:
    assert stock_for(1.0) is None
    assert target(1, 30, 4.0, 0.3, 0, 1000) == 30
    assert target(1, 30, 1.0, 0.3, 0, 1000) < 30


def test_intents_come_on_top_of_demand() -> None:
    quiet = target(0, 50, 0.5, 0.3, 0, 1000)
    assert target(0, 50, 0.5, 0.3, 7, 1000) == quiet + 7


def test_a_rate_is_what_was_seen_and_fades() -> None:
    demand = Demand()
    for second in range(600):
        demand.seen(float(second))
    assert math.isclose(demand.rate(599.0), 1.0, rel_tol=0.05)
    assert demand.rate(599.0 + 10 * TIME_CONSTANT_S) < 1e-4


def test_after_a_rush_a_pool_shrinks_to_its_minimum() -> None:
    """The tail of an average never ends by itself."""
    demand = Demand()
    for _ in range(100):
        demand.seen(0.0)
    assert target(1, 50, demand.rate(1.0), 0.3, 0, 1000) > 1
    assert target(1, 50, demand.rate(480.0), 0.3, 0, 1000) == 1


def test_stock_outs_are_rare_when_demand_stays_as_it_is() -> None:
    """The promise of the rule: one refill at a time, random arrivals, and less than one create in a hundred goes empty."""
    chance = random.Random(7)
    for load in (0.1, 0.3, 0.6, 0.8):
        stock = stock_for(load)
        assert stock is not None
        assert misses(load, stock, chance) < 0.01


def misses(load: float, stock: int, chance: random.Random) -> float:
    """A simulation: a refill takes 1 s, each create starts one, they run one after the other."""
    ready: list[float] = [0.0] * stock
    last_done = now = 0.0
    missed = 0
    arrivals = 20_000
    for _ in range(arrivals):
        now += chance.expovariate(load)
        ready.sort()
        if not ready or ready[0] > now:
            missed += 1
            continue
        ready.pop(0)
        last_done = max(last_done, now) + 1.0
        ready.append(last_done)
    return missed / arrivals


def test_an_intent_ends_with_its_time_or_its_creates() -> None:
    intents = Intents()
    intents.add(2, until=10.0)
    intents.add(3, until=5.0)
    assert intents.count(0.0) == 5
    intents.met(1.0)
    assert intents.count(1.0) == 4
    assert intents.count(6.0) == 2  # the rest of the second one is over
    intents.met(7.0)
    intents.met(7.0)
    intents.met(7.0)
    assert intents.count(7.0) == 0


def test_the_typical_refill_is_a_median_of_the_last() -> None:
    times = Refills()
    assert times.typical_s is None
    for seconds in (0.3, 0.3, 30.0):
        times.last.append(seconds)
    assert times.typical_s == 0.3


def parked(sandbox_id: str, since: float, recipe: Recipe = RECIPE, frozen: bool = False) -> Parked:
    return Parked(sandbox_id, recipe, since, since, frozen)


def stock(*items: Parked) -> Stock:
    made = Stock()
    for item in items:
        made.put(item)
    return made


def best(made: Stock, now: float, max_age_s: float = 100) -> list[str]:
    return [one.sandbox_id for one in made.best(RECIPE, now, max_age_s)]


def test_the_oldest_good_one_is_handed_out_first() -> None:
    made = stock(parked("new", 5), parked("old", 1), parked("other", 0, OTHER))
    assert best(made, 6) == ["old", "new"]


def test_one_that_is_too_old_is_not_handed_out() -> None:
    """opensandbox#983: a pool handed out a sandbox with milliseconds left to live."""
    made = stock(parked("old", 0))
    assert best(made, 100.0) == []
    assert best(made, 99.0) == ["old"]


def test_one_that_is_awake_is_handed_out_before_older_ones() -> None:
    made = stock(parked("frozen", 0, frozen=True), parked("awake", 9))
    assert best(made, 10) == ["awake", "frozen"]


def test_what_is_unwanted_is_foreign_old_or_too_many() -> None:
    made = stock(parked("foreign", 95, OTHER), parked("old", 0), parked("a", 90), parked("b", 91), parked("c", 92))
    unwanted = [one.sandbox_id for one in made.unwanted(RECIPE, 100, 100, wanted=1)]
    assert sorted(unwanted) == ["a", "b", "foreign", "old"]
    assert made.unwanted(RECIPE, 93, 100, wanted=5)[0].sandbox_id == "foreign"
    assert len(made.unwanted(None, 93, 100, wanted=5)) == 5


def test_the_one_checked_longest_ago_is_due_first() -> None:
    made = stock(parked("a", 3), parked("b", 1))
    due = made.due(12, every_s=10)
    assert due is not None
    assert due.sandbox_id == "b"
    due.checked = 12
    assert made.due(12, every_s=10) is None
    assert made.due(13, every_s=10) is not None


def test_what_stands_still_is_never_due() -> None:
    assert stock(parked("a", 0, frozen=True)).due(1000, every_s=10) is None
    assert stock(parked("a", 0)).due(1000, every_s=10) is not None


def test_creates_with_volumes_or_a_snapshot_are_never_warm() -> None:
    assert may_be_warm(SandboxCreate())
    assert not may_be_warm(SandboxCreate(warm=False))
    assert not may_be_warm(SandboxCreate(snapshot="s"))
    attached = SandboxCreate.model_validate({"volumes": [{"volume": "v", "path": "/data"}]})
    assert not may_be_warm(attached)
