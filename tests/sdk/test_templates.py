"""Templates, whose builds are waited for, pools and intents."""

from __future__ import annotations

import pytest
from protocol_app import App

from cloche import AsyncClient, Client
from cloche._templates import text_of
from cloche.errors import InvalidRequest, NotFound, TemplateBuildFailed
from cloche.models import Event


def test_a_build_is_waited_for_and_its_log_comes_piece_by_piece(client: Client, app: App) -> None:
    printed: list[str] = []
    made = client.templates.create(
        "data", image="python", setup="echo", contexts=[{"code": "import os"}], on_log=printed.append
    )
    assert (made.state, made.version) == ("ready", 1)
    assert "".join(printed) == "line 0\nline 1\nline 2\nline 3\n"
    assert len(printed) > 1
    assert app.bodies == [{"name": "data", "image": "python", "setup": "echo", "contexts": [{"code": "import os"}]}]


def test_the_same_inputs_are_the_same_version(client: Client) -> None:
    first = client.templates.create("data", setup="a")
    assert client.templates.create("data", setup="a") == first
    assert client.templates.create("data", setup="b").version == 2


def test_a_build_that_is_not_waited_for_goes_on(client: Client) -> None:
    assert client.templates.create("data", wait=False).state == "building"


def test_a_build_that_fails_says_where_and_shows_the_end_of_its_log(client: Client) -> None:
    with pytest.raises(TemplateBuildFailed, match=r"data@1 .*exited with 3") as caught:
        client.templates.create("data", setup="fail")
    assert caught.value.details == {
        "template": "data",
        "version": 1,
        "step": "setup",
        "log": "line 0\nline 1\nline 2\nline 3\n",
    }
    assert client.templates.get("data").state == "failed"


def test_templates_are_listed_read_and_deleted(client: Client) -> None:
    client.templates.create("data")
    assert [each.name for each in client.templates.list()] == ["data"]
    assert client.templates.log("data@1").text.startswith("line 0")
    assert client.templates.delete("data@1").version == 1
    with pytest.raises(NotFound):
        client.templates.get("data")


@pytest.mark.parametrize("reference", ["", "a/b", "a@", "a@0", "a@x", "a@1@2", "../pools"])
def test_what_is_no_template_is_not_asked_for(client: Client, reference: str) -> None:
    with pytest.raises(InvalidRequest):
        client.templates.get(reference)


def test_pools_are_made_changed_listed_and_deleted(client: Client, app: App) -> None:
    made = client.pools.put("p", template="data", min=2, max=5, max_age_s=60)
    assert (made.min, made.stats.ready) == (2, 2)
    assert app.bodies == [{"template": "data", "min": 2, "max": 5, "max_age_s": 60.0}]
    assert client.pools.get("p") == made
    assert client.pools.put("p", image="python").template is None
    assert [pool.name for pool in client.pools.list()] == ["p"]
    client.pools.delete("p")
    with pytest.raises(NotFound):
        client.pools.get("p")


def test_an_intent_says_which_pool_serves_it(client: Client) -> None:
    assert client.intents.create(template="data").pool is None
    client.pools.put("p", template="data")
    assert client.intents.create(template="data", count=3, within_s=30).pool == "p"


async def test_awaiting_does_the_same(async_client: AsyncClient) -> None:
    printed: list[str] = []

    async def on_log(text: str) -> None:
        printed.append(text)

    assert (await async_client.templates.create("data", on_log=on_log)).state == "ready"
    assert "".join(printed).endswith("line 3\n")
    assert (await async_client.pools.put("p", template="data")).name == "p"
    assert (await async_client.intents.create(template="data")).pool == "p"
    assert [each.name for each in await async_client.pools.list()] == ["p"]
    assert [each.version for each in await async_client.templates.list()] == [1]


def test_a_build_is_followed_over_a_lost_connection_to_its_end(client: Client) -> None:
    client.templates.create("data", wait=False)
    events = list(client.templates.follow("data@1"))
    assert [event.data["text"] for event in events[:-1]] == [f"line {n}\n" for n in range(4)]
    assert (events[-1].type, events[-1].data["state"]) == ("finished", "ready")
    assert list(client.templates.follow("data", cursor=events[1].cursor)) == events[2:]


async def test_awaiting_follows_the_same(async_client: AsyncClient) -> None:
    await async_client.templates.create("data", wait=False)
    events = [event async for event in async_client.templates.follow("data@1")]
    assert [event.type for event in events] == ["output"] * 4 + ["finished"]


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Event(type="output", cursor="a.0.1", data={"text": "x"}), "x"),
        (Event(type="gap", cursor="a.0.1", data={"characters": 7}), "\n[... 7 characters left out ...]\n"),
        (Event(type="finished", cursor="a.1.1", data={"state": "ready"}), ""),
    ],
)
def test_what_an_event_of_a_log_shows(event: Event, text: str) -> None:
    assert text_of(event) == text


def test_an_admin_names_the_owner(client: Client) -> None:
    client.templates.create("data")
    client.pools.put("p", template="data")
    assert client.templates.get("data", owner="me").name == client.pools.get("p", owner="me").template == "data"
    assert client.templates.log("data", owner="me").text
    assert list(client.templates.follow("data", owner="me"))
    for call in (client.templates.get, client.templates.log, client.templates.delete):
        with pytest.raises(NotFound, match="mine"):
            call("data", owner="other")
    for pool_call in (client.pools.get, client.pools.delete):
        with pytest.raises(NotFound, match="mine"):
            pool_call("p", owner="other")
    with pytest.raises(NotFound, match="mine"):
        list(client.templates.follow("data", owner="other"))
