"""Digests of variables: equal values have equal ones, in whatever process; no code of the user runs."""

from __future__ import annotations

from typing import Any

from guest_process import Context, Guest
from hypothesis import given
from hypothesis import strategies as st

from cloche_guest.kernel_side._digests import MAX_DEPTH, digest

scalars = st.one_of(
    st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False), st.text(max_size=5), st.binary(max_size=5)
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.dictionaries(st.text(max_size=3), inner, max_size=4),
        st.frozensets(scalars, max_size=4),
    ),
    max_leaves=12,
)


def typed(value: Any) -> Any:
    """Equal only when the types are, too: ``1 == True == 1.0``, and 0.0 == -0.0."""
    if isinstance(value, (list, tuple)):
        return type(value), [typed(item) for item in value]
    if isinstance(value, frozenset):
        return frozenset, sorted(map(repr, map(typed, value)))
    if isinstance(value, dict):
        return dict, [(typed(key), typed(item)) for key, item in value.items()]
    return type(value), repr(value)


@given(values, values)
def test_digests_are_equal_when_the_values_are(one: Any, two: Any) -> None:
    assert digest(one) is not None
    assert (digest(one) == digest(two)) == (typed(one) == typed(two))


class Loud:
    """A type of the user whose code must not run."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"{name} was looked at")

    def __hash__(self) -> int:
        return 1

    __eq__ = __repr__ = __len__ = __iter__ = None  # type: ignore[assignment]


def endless() -> list[Any]:
    made: list[Any] = []
    made.append(made)
    return made


def deep() -> list[Any]:
    made: list[Any] = []
    for _ in range(MAX_DEPTH):
        made = [made]
    return made


def test_what_cannot_be_compared_has_no_digest_and_no_code_of_the_user_runs() -> None:
    loud = [Loud(), [1, Loud()], {Loud(): 1}, slice(Loud())]  # no parameters of pytest: it looks at them
    others = [endless(), deep(), lambda: None, type("L", (list,), {})()]
    assert {digest(value) for value in (*loud, *others)} == {None}


def test_kernels_are_compared_by_name(guest: Guest, context: Context, shared: Context) -> None:
    """Hash salts differ between the two: the order of a set of strings does not count."""
    code = "text = 'x' * 1000; words = {str(n) for n in range(100)}; _hidden = 1\nclass Own: pass\nown = Own()"

    def summary(of: Context) -> dict[str, Any]:
        found = guest.call("POST", "/v1/variables/summary", {"context_id": of.id})
        return {variable["name"]: variable for variable in found["variables"]}

    other = guest.create()
    context.ok(code)
    other.ok(code)
    one, two = summary(context), summary(other)
    assert one.keys() == two.keys() >= {"text", "words", "own"}
    assert "_hidden" not in one
    assert one["text"]["digest"] == two["text"]["digest"] is not None
    assert one["words"]["digest"] == two["words"]["digest"] is not None
    assert one["own"]["digest"] is None
    other.ok("text += 'y'")
    assert summary(other)["text"]["digest"] != one["text"]["digest"]
    other.delete()


def test_variables_of_a_context_that_is_not_there_are_not_found(guest: Guest) -> None:
    """Looking makes no context, not even the default one."""
    before = [context["id"] for context in guest.call("GET", "/v1/contexts")["items"]]
    guest.call("POST", "/v1/variables/summary", {"context_id": "ctx-" + "a" * 12}, status=404)
    assert [context["id"] for context in guest.call("GET", "/v1/contexts")["items"]] == before
