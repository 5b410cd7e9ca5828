"""Calls of files and watches; see `cloche._calls`."""

from __future__ import annotations

import os
from typing import Final, TypeAlias

from cloche import models
from cloche._answers import model_parser
from cloche._calls import Call, Query, json_body, sandbox_path, segment
from cloche._tail import OneStream
from cloche.path_text import to_text

FilePathLike: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"
"""A path in the sandbox: absolute, or relative to /workspace. Names that are not UTF-8: bytes, or surrogate escapes."""

CHANGE_ANSWER_S: Final = 640.0
"""Above the server's bound for what may touch many files."""

BYTES: Final = {"Content-Type": "application/octet-stream"}

_info = model_parser(models.FileInfo)
_page = model_parser(models.FilePage)
_removed = model_parser(models.Removed)
_globbed = model_parser(models.GlobMatches)
_found = model_parser(models.SearchMatches)
_stored = model_parser(models.TreeStored)
_cloned = model_parser(models.Cloned)
_watch = model_parser(models.Watch)
_watches = model_parser(models.Page[models.Watch])
_changes = model_parser(models.Changes)


def text_of(path: FilePathLike) -> str:
    """A path as the API spells it."""
    return to_text(os.fsdecode(path))


def query_of(path: FilePathLike, user: str | None, **more: str | None) -> Query:
    """Without what is None."""
    given = {"path": text_of(path), "user": user, **more}
    return tuple((name, value) for name, value in given.items() if value is not None)


def files_path(sandbox_id: str, name: str) -> str:
    return f"{sandbox_path(sandbox_id)}/files/{name}"


def read(sandbox_id: str, query: Query, headers: dict[str, str]) -> Call[bytes]:
    path = files_path(sandbox_id, "content")
    return Call("GET", path, bytes, query=query, headers=headers, repeatable=True, answer_within_s=CHANGE_ANSWER_S)


def write(sandbox_id: str, query: Query, body: bytes | None, conditions: dict[str, str]) -> Call[models.FileInfo]:
    """Repeatable unless there are conditions: the first try may have changed what they speak of."""
    path, headers = files_path(sandbox_id, "content"), BYTES | conditions
    again = body is not None and not conditions
    return Call("PUT", path, _info, query, body, headers, repeatable=again, answer_within_s=CHANGE_ANSWER_S)


def append(sandbox_id: str, query: Query, body: bytes) -> Call[models.FileInfo]:
    return Call("POST", files_path(sandbox_id, "content"), _info, query, body, BYTES, answer_within_s=CHANGE_ANSWER_S)


def stat(sandbox_id: str, query: Query) -> Call[models.FileInfo]:
    return Call("GET", files_path(sandbox_id, "stat"), _info, query=query, repeatable=True)


def list_page(sandbox_id: str, query: Query) -> Call[models.FilePage]:
    return Call("GET", files_path(sandbox_id, "list"), _page, query=query, repeatable=True, answer_within_s=60)


def glob(sandbox_id: str, query: Query) -> Call[models.GlobMatches]:
    path = files_path(sandbox_id, "glob")
    return Call("GET", path, _globbed, query=query, repeatable=True, answer_within_s=CHANGE_ANSWER_S)


def search(sandbox_id: str, body: models.FileSearch) -> Call[models.SearchMatches]:
    path = files_path(sandbox_id, "search")
    return Call("POST", path, _found, body=json_body(body), repeatable=True, answer_within_s=120)


def change(sandbox_id: str, name: str, body: models.Model) -> Call[models.FileInfo]:
    """mkdir, move, copy, chmod."""
    path = files_path(sandbox_id, name)
    return Call("POST", path, _info, body=json_body(body), answer_within_s=CHANGE_ANSWER_S)


def remove(sandbox_id: str, body: models.RemoveFile) -> Call[models.Removed]:
    path = files_path(sandbox_id, "remove")
    return Call("POST", path, _removed, body=json_body(body), answer_within_s=CHANGE_ANSWER_S)


def clone(sandbox_id: str, body: models.GitClone) -> Call[models.Cloned]:
    path = files_path(sandbox_id, "clone")
    return Call("POST", path, _cloned, body=json_body(body), answer_within_s=body.timeout_s + 60)


def clone_stream(sandbox_id: str, body: models.GitClone) -> OneStream:
    """A clone as events: ``progress``, and ``finished`` at its end."""
    return OneStream(files_path(sandbox_id, "clone"), json_body(body), last_type="finished")


def download_tree(sandbox_id: str, query: Query) -> Call[bytes]:
    return Call("GET", files_path(sandbox_id, "tree"), bytes, query=query, answer_within_s=CHANGE_ANSWER_S)


def upload_tree(sandbox_id: str, query: Query) -> Call[models.TreeStored]:
    return Call("PUT", files_path(sandbox_id, "tree"), _stored, query=query, answer_within_s=CHANGE_ANSWER_S)


def watches_path(sandbox_id: str) -> str:
    return f"{sandbox_path(sandbox_id)}/watches"


def create_watch(sandbox_id: str, body: models.WatchCreate) -> Call[models.Watch]:
    return Call("POST", watches_path(sandbox_id), _watch, body=json_body(body), answer_within_s=160)


def watch_path(sandbox_id: str, watch_id: str) -> str:
    return f"{watches_path(sandbox_id)}/{segment('watch', watch_id)}"


def delete_watch(path: str) -> Call[models.Watch]:
    return Call("DELETE", path, _watch)


def changes(path: str, since: str) -> Call[models.Changes]:
    return Call("GET", f"{path}/changes", _changes, query=(("since", since),), repeatable=True)
