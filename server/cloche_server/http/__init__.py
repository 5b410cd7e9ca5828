"""The HTTP edge: Tornado's handlers, which only translate."""

from cloche_server.http._app import make_app, make_http_server

__all__ = ["make_app", "make_http_server"]
