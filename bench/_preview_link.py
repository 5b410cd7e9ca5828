"""A preview as a browser has it: a link that became a cookie."""

from __future__ import annotations

import http.client
from typing import NamedTuple
from urllib.parse import urlsplit

from cloche import Sandbox


class PreviewLink(NamedTuple):
    """``host`` with its port, as requests name it; the server itself is on ``port`` of this machine."""

    host: str
    port: int
    cookie: str


def preview_link(sandbox: Sandbox, port: int) -> PreviewLink:
    """Of an app that serves on ``port`` of the sandbox."""
    link = urlsplit(sandbox.preview(port).token_url)
    server_port = link.port or 80
    connection = http.client.HTTPConnection("127.0.0.1", server_port)
    connection.request("GET", f"/?{link.query}", headers={"Host": link.netloc, "Accept": "text/html"})
    cookie = (connection.getresponse().headers["Set-Cookie"] or "").partition(";")[0]
    connection.close()
    return PreviewLink(link.netloc, server_port, cookie)
