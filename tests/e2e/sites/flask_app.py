"""A Flask app for the tests of previews: `python -m flask --app flask_app run`, inside a sandbox."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from flask import Flask, Response, redirect, request, session, url_for
from werkzeug.wrappers import Response as Answer

PAGE = """<!doctype html><title>Flask</title><p id="name">{name}</p>
<form method="post" action="/login"><input name="name" value="Ada"></form><script>
window.heard = []
const events = new EventSource('/events')
events.onmessage = event => {{
  heard.push(event.data)
  if (event.data === 'first') fetch('/next', {{method: 'POST'}})
  if (event.data === 'second') events.close()
}}
</script>"""

app = Flask(__name__)
app.secret_key = "of a test"
next_asked = threading.Event()


@app.get("/")
def page() -> str:
    return PAGE.format(name=session.get("name", "nobody"))


@app.post("/login")
def login() -> Answer:
    session["name"] = request.form["name"]
    return redirect(url_for("page", _external=True))


@app.get("/events")
def events() -> Response:
    """The second event is sent once the page has asked for it, so the first was not held back on its way."""

    def stream() -> Iterator[str]:
        yield "data: first\n\n"
        yield f"data: {'second' if next_asked.wait(60) else 'nobody asked'}\n\n"

    return Response(stream(), mimetype="text/event-stream")


@app.post("/next")
def go_on() -> tuple[str, int]:
    next_asked.set()
    return "", 204
