"""Templates, and the pools that keep sandboxes of them ready."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypedDict, Unpack

from pydantic import JsonValue

from cloche import _template_calls as _calls
from cloche import models
from cloche._answers import built
from cloche._build_log import BuildLog
from cloche._flow import Flow, Tell, awaiting, blocking, send, send_patiently
from cloche._link import AsyncLink, Link
from cloche._pages import all_pages
from cloche._patience import Patience
from cloche._run_handle import WAIT_S
from cloche.errors import Gone, NotFound, TemplateBuildFailed
from cloche.models import Intent, IntentCreate, Pool, PoolCreate, Resources, Template, TemplateCreate, TemplateLog

OnLog: TypeAlias = Callable[[str], object]

LOOK_S: Final = 1.0
"""Between two looks at the log of a build, when somebody reads it."""

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
        reference, log = reference_of(template), BuildLog()
        while template.state == "building":
            if on_log is not None:
                yield from self._tell(reference, log, on_log)
            call = _calls.template(reference, WAIT_S if on_log is None else LOOK_S)
            template = yield from send_patiently(call, self._patience)
        if on_log is not None:
            yield from self._tell(reference, log, on_log)
        if template.state != "ready":
            raise (yield from self._failure(template))
        return template

    def _tell(self, reference: str, log: BuildLog, on_log: OnLog) -> Flow[None]:
        now = yield from send_patiently(_calls.template_log(reference), self._patience)
        if news := log.news(now):
            yield Tell(on_log, news)

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

    def _list(self) -> Flow[list[Template]]:
        """All versions of this key's owner, by name, newest first."""
        return (yield from all_pages(_calls.templates, (), self._patience))

    def _get(self, template: str) -> Flow[Template]:
        """One version: ``name@3``, or ``name`` for the newest that is ready.

        :raises NotFound: there is none.
        """
        return (yield from send_patiently(_calls.template(template), self._patience))

    def _log(self, template: str) -> Flow[TemplateLog]:
        """What its build has printed."""
        return (yield from send_patiently(_calls.template_log(template), self._patience))

    def _delete(self, template: str) -> Flow[Template]:
        """Remove ``name@3``, or with ``name`` all versions. Sandboxes made from it go on.

        :raises Conflict: a pool is filled from it.
        """
        return (yield from send(_calls.delete_template(template)))


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
        min: int | None = None,
        max: int | None = None,
        max_age_s: float | None = None,
    ) -> Flow[Pool]:
        """Make a pool, or change it. Creates that it can serve are served from it by themselves; see docs/pools.md.

        :param template: ``name``, whose newest version is followed, or ``name@version``; or give an ``image``.
        :param min: so many are kept ready, up to ``max`` when creates come often.
        :param max_age_s: ready ones that are older are replaced.
        """
        body = built(PoolCreate, template=template, image=image, min=min, max=max, max_age_s=max_age_s)
        return (yield from send_patiently(_calls.put_pool(name, body), self._patience))

    def _list(self) -> Flow[list[Pool]]:
        """All pools of this key's owner, with how full they are."""
        return list((yield from send_patiently(_calls.pools(), self._patience)).items)

    def _get(self, name: str) -> Flow[Pool]:
        """One pool.

        :raises NotFound: there is none.
        """
        return (yield from send_patiently(_calls.pool(name), self._patience))

    def _delete(self, name: str) -> Flow[Pool]:
        """Remove a pool with all that are ready in it. Sandboxes that were handed out go on."""
        return (yield from send(_calls.delete_pool(name)))


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
