"""Everything a user can meet is in docs/: routes, error codes, settings. A new one without its words fails here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click import Command

from cloche.errors import ERRORS
from cloche_server.cli import doctor, serve
from cloche_server.routes import ROUTES
from cloche_server.routing import Route
from cloche_server.settings import ENV_PREFIX, Settings

DOCS = Path(__file__).parents[1] / "docs"


def text_of(name: str) -> str:
    return (DOCS / name).read_text()


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_is_documented_with_its_role(route: Route) -> None:
    role = route.role.value if route.role else "none"
    assert f"| `{route.method} {route.path}` | {role} |" in text_of("api.md")


def test_no_route_is_documented_that_is_not_there() -> None:
    documented = set(re.findall(r"^\| `([A-Z]+ /\S*)` \|", text_of("api.md"), re.M))
    assert documented == {f"{route.method} {route.path}" for route in ROUTES}


@pytest.mark.parametrize("code", ERRORS)
def test_every_error_code_is_documented_with_its_status(code: str) -> None:
    cls = ERRORS[code]
    retryable = "yes" if cls.retryable else "no"
    assert f"| `{code}` | {cls.status} | {retryable} |" in text_of("errors.md")


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_documented_and_a_flag(name: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    assert f"| `{flag}` | `{ENV_PREFIX}{name.upper()}` |" in text_of("server.md")
    assert flag in [option for parameter in serve.params for option in parameter.opts]


@pytest.mark.parametrize("command", [serve, doctor])
def test_every_flag_has_help(command: Command) -> None:
    assert all(getattr(parameter, "help", None) for parameter in command.params)


@pytest.mark.parametrize("name", ["server.md", "errors.md", "api.md"])
def test_links_between_documents_lead_somewhere(name: str) -> None:
    targets = re.findall(r"\]\(([\w/.-]+)\)", text_of(name)) + re.findall(r"docs/([\w/.-]+\.md)", text_of(name))
    for target in targets:
        assert (DOCS / target).exists(), target
