"""Query parameters of template routes."""

from __future__ import annotations

from pydantic import Field

from cloche.models import Name
from cloche.models.runs import MAX_WAIT_S
from cloche_server.routing._params import FromCursor, PageText, Query


class BuildWait(Query):
    wait: bool = Field(
        default=True, description=f"for the end of the build, {MAX_WAIT_S:g} s at most; false: answer at once"
    )


class OfOwner(Query):
    owner: Name | None = Field(default=None, description="admins only: that of another owner; without it, your own")


class BuildFromCursor(FromCursor, OfOwner):
    pass


class WaitForBuild(OfOwner):
    wait_s: float = Field(default=0, ge=0, le=MAX_WAIT_S, description="seconds to wait for the end of a build")


class ListPools(Query):
    owner: Name | None = Field(default=None, description="admins only; without it an admin sees all owners")


class ListTemplates(ListPools):
    limit: int = Field(default=50, ge=1, le=200)
    page: PageText | None = Field(default=None, description="`next_page` of the page before")
    name: Name | None = Field(default=None, description="versions of this name")
