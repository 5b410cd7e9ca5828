"""Templates, and the pools that keep sandboxes of them ready."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from typing import Final, TypeAlias, TypedDict, Unpack

from pydantic import JsonValue

from cloche import _template_calls as _calls
from cloche import models
from cloche._answers import built
from cloche._flow import Flow, Follow, Tell, awaiting, blocking, send, send_patiently
from cloche._link import AsyncLink, Link
from cloche._pages import all_pages
from cloche._patience import Patience
from cloche._run_handle import WAIT_S
from cloche._tail import Tail
from cloche.errors import CursorError, Gone, NotFound, TemplateBuildFailed
from cloche.models import (
    Event,
    Intent,
    IntentCreate,
    Pool,
    PoolCreate,
    Resources,
    Template,
    TemplateCreate,
    TemplateLog,
)

OnLog: TypeAlias = Callable[[str], object]

END_CHARACTERS: Final = 4000
"""Of the log, in an error; as much as the server itself would give."""


class TemplateOptions(TypedDict, total=False):
    """What goes into a template; see `cloche.models.TemplateCreate`. None: the server's default.

    ``setup``: a bash script. ``contexts``: mappings with ``code``, and ``context`` for another one than the default.
    ``services``: mappings as `Services.declare` takes them.
    """

    image: str | None
    driver: str | None
    resources: Resources | Mapping[str, float] | None
    env: Mapping[str, str] | None
    sudo: bool | None
    setup: str | None
    setup_timeout_s: float | None
    contexts: Sequence[models.TemplateContext | Mapping[str, object]] | None
    services: Sequence[models.ServiceCreate | Mapping[str, object]] | None


class TemplateFlows:
    """Templates, as flows."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    def _create(
        self, name: str, *, wait: bool = True, on_log: OnLog | None = None, **options: Unpack[TemplateOptions]
    ) -> Flow[Template]:
        """Build a template, or get the version that these inputs have made. Inputs: see `TemplateOptions`.

        :param wait: for the end of the build, however long it takes. False: it may be ``building`` still.
        :param on_log: called with what the build prints, while it prints it.
        :raises TemplateBuildFailed: ``details`` have the step and the end of the log. The next try builds it again.
        """
        body = built(TemplateCreate, name=name, **options)
        made = yield from send_patiently(_calls.create_template(body), self._patience)
        return (yield from self._built(made, on_log)) if wait else made

    def _built(self, template: Template, on_log: OnLog | None) -> Flow[Template]:
        """``template`` when its build is over."""
        reference = reference_of(template)
        if on_log is not None:
            yield from self._show(reference, on_log)
            template = yield from send_patiently(_calls.template(reference), self._patience)
        while template.state == "building":
            template = yield from send_patiently(_calls.template(reference, WAIT_S), self._patience)
        if template.state != "ready":
            raise (yield from self._failure(template))
        return template

    def _show(self, reference: str, on_log: OnLog) -> Flow[None]:
        def take(event: Event) -> Flow[None]:
            if text := text_of(event):
                yield Tell(on_log, text)

        try:
            yield Follow(self._tail(reference, None), take)
        except CursorError:
            return  # a server that was killed has lost the log with the build, and says so next

    def _tail(self, template: str, cursor: str | None, owner: str | None = None) -> Tail:
        path = _calls.template_events_path(template)
        return Tail(path, cursor=cursor, last_type="finished", patience=self._patience, params=_said(owner=owner))

    def _failure(self, template: Template) -> Flow[TemplateBuildFailed]:
        """As the server's own answer would be, had it waited."""
        reference = reference_of(template)
        step, _, why = (template.failure or "").partition(": ")
        details: dict[str, JsonValue] = {"template": template.name, "version": template.version, "step": step}
        try:
            log = yield from send_patiently(_calls.template_log(reference), self._patience)
            details["log"] = log.text[-END_CHARACTERS:]
        except (NotFound, Gone):
            pass  # deleted meanwhile: it has failed all the same
        return TemplateBuildFailed(
            f"template {reference} could not be built: {why or template.state}",
            hint="the next build of the same inputs tries again",
            details=details,
        )

    def _list(self, *, name: str | None = None, owner: str | None = None) -> Flow[list[Template]]:
        """All versions, by name, newest first: of this key's owner, for an admin of all owners.

        :param name: versions of this template.
        :param owner: of another owner; needs the role admin.
        """
        return (yield from all_pages(_calls.templates, _said(name=name, owner=owner), self._patience))

    def _get(self, template: str, *, owner: str | None = None) -> Flow[Template]:
        """One version: ``name@3``, or ``name`` for the newest that is ready.

        :param owner: of another owner; needs the role admin.
        :raises NotFound: there is none.
        """
        call = _calls.template(template, query=_said(owner=owner))
        return (yield from send_patiently(call, self._patience))

    def _log(self, template: str, *, owner: str | None = None) -> Flow[TemplateLog]:
        """What its build has printed. ``owner`` as in `get`."""
        return (yield from send_patiently(_calls.template_log(template, _said(owner=owner)), self._patience))

    def _delete(self, template: str, *, owner: str | None = None) -> Flow[Template]:
        """Remove ``name@3``, or with ``name`` all versions. Sandboxes made from it go on. ``owner`` as in `get`.

        :raises Conflict: a pool is filled from it.
        """
        return (yield from send(_calls.delete_template(template, _said(owner=owner))))


def _said(**filters: str | None) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in filters.items() if value is not None)


def text_of(event: Event) -> str:
    """What an event of a build's log has to show; nothing for the last."""
    if event.type == "gap":
        return f"\n[... {event.data['characters']} characters left out ...]\n"
    return str(event.data["text"]) if event.type == "output" else ""


def reference_of(template: Template) -> str:
    """``name@version``."""
    return f"{template.name}@{template.version}"


class PoolFlows:
    """Pools, as flows."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience

    def _put(
        self,
        name: str,
        *,
        template: str | None = None,
        image: str | None = None,
        driver: str | None = None,
        resources: Resources | Mapping[str, float] | None = None,
        sudo: bool | None = None,
        shared: bool | None = None,
        min: int | None = None,
        max: int | None = None,
        max_age_s: float | None = None,
    ) -> Flow[Pool]:
        """Make a pool, or change it. Creates that it can serve are served from it by themselves; see docs/pools.md.

        :param template: ``name``, whose newest version is followed, or ``name@version``; or give an ``image``, with the
            ``driver``, ``resources`` and ``sudo`` of the creates it is for.
        :param shared: it serves the creates of every owner (admins only, of an image).
        :param min: so many are kept ready, up to ``max`` when creates come often.
        :param max_age_s: ready ones that are older are replaced.
        """
        of = {"template": template, "image": image, "driver": driver, "resources": resources, "sudo": sudo}
        body = built(PoolCreate, **of, shared=shared, min=min, max=max, max_age_s=max_age_s)
        return (yield from send_patiently(_calls.put_pool(name, body), self._patience))

    def _list(self, *, owner: str | None = None) -> Flow[list[Pool]]:
        """All pools and how full they are: of this key's owner and the shared ones, for an admin of all owners.

        :param owner: of another owner; needs the role admin.
        """
        return list((yield from send_patiently(_calls.pools(_said(owner=owner)), self._patience)).items)

    def _get(self, name: str, *, owner: str | None = None) -> Flow[Pool]:
        """One pool.

        :param owner: of another owner; needs the role admin.
        :raises NotFound: there is none.
        """
        return (yield from send_patiently(_calls.pool(name, _said(owner=owner)), self._patience))

    def _delete(self, name: str, *, owner: str | None = None) -> Flow[Pool]:
        """Remove a pool with all that are ready in it. Sandboxes that were handed out go on. ``owner`` as in `get`."""
        return (yield from send(_calls.delete_pool(name, _said(owner=owner))))


class IntentFlows:
    """Intents, as flows."""

    def _create(
        self,
        *,
        template: str | None = None,
        image: str | None = None,
        count: int | None = None,
        within_s: float | None = None,
    ) -> Flow[Intent]:
        """Say that creates are likely soon, so that the pool that serves them makes more ready.

        :param count: so many (1), ``within_s`` seconds (60).
        """
        body = built(IntentCreate, template=template, image=image, count=count, within_s=within_s)
        return (yield from send(_calls.create_intent(body)))


class Templates(TemplateFlows):
    """Templates of one server."""

    def __init__(self, link: Link) -> None:
        super().__init__(link.patience)
        self._link = link

    def follow(
        self, template: str, cursor: str | None = None, *, owner: str | None = None
    ) -> Generator[Event, None, None]:
        """What a build prints, while it prints it: ``output`` events, and at its end ``finished`` with ``state`` and
        ``failure``. Of a build that is over: all it has printed. Reconnects, and neither repeats nor leaves out an event.

        :param cursor: go on behind this event.
        :param owner: of another owner; needs the role admin.
        """
        return self._link.follow(self._tail(template, cursor, owner))

    create = blocking(TemplateFlows._create)
    list = blocking(TemplateFlows._list)
    get = blocking(TemplateFlows._get)
    log = blocking(TemplateFlows._log)
    delete = blocking(TemplateFlows._delete)


class AsyncTemplates(TemplateFlows):
    """Templates of one server."""

    def __init__(self, link: AsyncLink) -> None:
        super().__init__(link.patience)
        self._link = link

    def follow(
        self, template: str, cursor: str | None = None, *, owner: str | None = None
    ) -> AsyncGenerator[Event, None]:
        """What a build prints, while it prints it; see `Templates.follow`."""
        return self._link.follow(self._tail(template, cursor, owner))

    create = awaiting(TemplateFlows._create)
    list = awaiting(TemplateFlows._list)
    get = awaiting(TemplateFlows._get)
    log = awaiting(TemplateFlows._log)
    delete = awaiting(TemplateFlows._delete)


class Pools(PoolFlows):
    """Pools of one server."""

    def __init__(self, link: Link) -> None:
        super().__init__(link.patience)
        self._link = link

    put = blocking(PoolFlows._put)
    list = blocking(PoolFlows._list)
    get = blocking(PoolFlows._get)
    delete = blocking(PoolFlows._delete)


class AsyncPools(PoolFlows):
    """Pools of one server."""

    def __init__(self, link: AsyncLink) -> None:
        super().__init__(link.patience)
        self._link = link

    put = awaiting(PoolFlows._put)
    list = awaiting(PoolFlows._list)
    get = awaiting(PoolFlows._get)
    delete = awaiting(PoolFlows._delete)


class Intents(IntentFlows):
    """Announcements of creates."""

    def __init__(self, link: Link) -> None:
        self._link = link

    create = blocking(IntentFlows._create)


class AsyncIntents(IntentFlows):
    """Announcements of creates."""

    def __init__(self, link: AsyncLink) -> None:
        self._link = link

    create = awaiting(IntentFlows._create)
