"""A FastAPI app for the tests of previews: `python -m uvicorn fastapi_app:app`, inside a sandbox."""

from __future__ import annotations

from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import HTMLResponse

PAGE = """<!doctype html><title>FastAPI</title><p id="sum"></p><script>
window.said = []
fetch('/sum', {method: 'POST', headers: {'Content-Type': 'application/json'}, body: '{"numbers": [2, 3, 4]}'})
  .then(answer => answer.json()).then(body => { document.getElementById('sum').textContent = body.sum })
const socket = new WebSocket(`ws://${location.host}/upper`)
socket.onopen = () => socket.send('grüße')
socket.onmessage = event => { said.push(event.data); if (said.length === 1) socket.send('') }
socket.onclose = event => said.push(event.code)
</script>"""

app = FastAPI()


@app.get("/", response_class=HTMLResponse)
async def page() -> str:
    return PAGE


@app.get("/seen")
async def seen(request: Request) -> dict[str, object]:
    """What the app takes itself to be, and which credentials it got."""
    return {"url": str(request.url), "cookies": dict(request.cookies)}


@app.post("/sum")
async def add(body: dict[str, list[int]]) -> dict[str, int]:
    return {"sum": sum(body["numbers"])}


@app.websocket("/upper")
async def upper(socket: WebSocket) -> None:
    """Repeats in capitals; an empty message ends it."""
    await socket.accept()
    while text := await socket.receive_text():
        await socket.send_text(text.upper())
    await socket.close(4321)
