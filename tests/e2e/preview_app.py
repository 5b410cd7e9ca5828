"""An app for previews, run inside a sandbox by the Python of its kernels: `python -c SOURCE PORT [HOST]`. Tornado is there."""

from __future__ import annotations

import asyncio
import hashlib
import sys

from tornado import httpserver, web, websocket

BLOCK = bytes(range(256)) * 256


class Echo(web.RequestHandler):
    """What arrived, in full."""

    def answer(self, *_: str) -> None:
        self.add_header("Set-Cookie", "app=1; Domain=localhost; Path=/")
        body = {"line": f"{self.request.method} {self.request.uri}", "headers": list(self.request.headers.get_all())}
        self.write({**body, "size": len(self.request.body)})

    get = post = put = patch = delete = options = answer


@web.stream_request_body
class Upload(web.RequestHandler):
    """Takes any number of bytes; answers with their digest."""

    def prepare(self) -> None:
        self.request.connection.set_max_body_size(2**40)  # type: ignore[union-attr]
        self.digest, self.size = hashlib.sha256(), 0

    def data_received(self, chunk: bytes) -> None:
        self.digest.update(chunk)
        self.size += len(chunk)

    def post(self) -> None:
        self.write({"sha256": self.digest.hexdigest(), "size": self.size})


class Download(web.RequestHandler):
    """``?size=&length=``: so many bytes, with Content-Length or in chunks."""

    async def get(self) -> None:
        left = int(self.get_argument("size"))
        if self.get_argument("length", "") == "yes":
            self.set_header("Content-Length", str(left))
        while left > 0:
            self.write(BLOCK[:left])
            left -= len(BLOCK)
            await self.flush()


class Events(web.RequestHandler):
    """The second event is sent once ``/next`` was asked for."""

    gate = asyncio.Event()

    async def get(self) -> None:
        self.set_header("Content-Type", "text/event-stream")
        self.write("data: first\n\n")
        await self.flush()
        await self.gate.wait()
        self.gate.clear()
        self.write("data: second\n\n")


class Hold(web.RequestHandler):
    """Never answers; says when its visitor went away."""

    async def get(self) -> None:
        print("held", flush=True)
        await asyncio.Event().wait()

    def on_connection_close(self) -> None:
        print("the visitor went away", flush=True)


class Next(web.RequestHandler):
    def post(self) -> None:
        Events.gate.set()


class Socket(websocket.WebSocketHandler):
    """Says first what it was called, as Vite's does; then repeats everything. Checks Origin against Host, as most do."""

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return "vite-hmr" if "vite-hmr" in subprotocols else None

    def open(self, *_: str) -> None:
        self.write_message(
            {"type": "connected", "host": self.request.host, "origin": self.request.headers.get("Origin")}
        )

    def on_message(self, message: str | bytes) -> None:
        if message == "close":
            self.close(4321, "as you wish")
        else:
            self.write_message(message, binary=isinstance(message, bytes))

    def on_close(self) -> None:
        print("socket closed with", self.close_code, flush=True)


class Status(web.RequestHandler):
    def get(self, code: str) -> None:
        self.set_status(int(code))
        if int(code) not in (204, 304):
            self.write("the app's own page")


class Redirect(web.RequestHandler):
    def get(self) -> None:
        self.redirect(f"{self.request.protocol}://{self.request.host}/there?a=%20b")


async def main() -> None:
    routes = [
        ("/upload", Upload),
        ("/download", Download),
        ("/events", Events),
        ("/next", Next),
        ("/hold", Hold),
        ("/socket", Socket),
        (r"/status/(\d+)", Status),
        ("/redirect", Redirect),
        ("/.*", Echo),
    ]
    app = web.Application(routes, websocket_max_message_size=64 * 1024 * 1024)  # type: ignore[arg-type]
    httpserver.HTTPServer(app).listen(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
