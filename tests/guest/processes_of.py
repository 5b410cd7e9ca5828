"""A small client for processes of a guest, over `Guest`."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from guest_process import Guest, Json, parse_sse


def to_bytes(data: Json) -> bytes:
    """What a `Data`, or the data of an output event, stands for."""
    if data.get("base64") is not None:
        return base64.b64decode(data["base64"])
    return (data.get("text") or "").encode()


class Processes:
    """Everything under ``/v1/processes`` and ``/v1/exec``."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest

    def exec(self, *argv: str, **body: Any) -> Json:
        """Run to the end and return the ExecResult."""
        given = {"argv": list(argv), **body} if argv else body
        return self.guest.call("POST", "/v1/exec?wait_s=60", given, status=200)

    def shell(self, line: str, **body: Any) -> Json:
        return self.exec(shell=line, **body)

    def out(self, line: str, **body: Any) -> str:
        """What a shell line writes to stdout; it must end well."""
        result = self.shell(line, **body)
        assert result["process"]["exit"]["code"] == 0, result
        return to_bytes(result["stdout"]["data"]).decode()

    def start(self, *argv: str, **body: Any) -> str:
        given = {"argv": list(argv), **body} if argv else body
        return str(self.guest.call("POST", "/v1/processes", given, status=201)["id"])

    def get(self, process_id: str) -> Json:
        return self.guest.call("GET", f"/v1/processes/{process_id}")

    def delete(self, process_id: str) -> Json:
        return self.guest.call("DELETE", f"/v1/processes/{process_id}")

    def signal(self, process_id: str, signal: str | int, **body: Any) -> Json:
        return self.guest.call("POST", f"/v1/processes/{process_id}/signal", {"signal": signal, **body})

    def write(self, process_id: str, data: bytes, query: str = "") -> Json:
        response = self.guest.http.post(f"/v1/processes/{process_id}/stdin{query}", content=data)
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer

    def wait(self, process_id: str, *conditions: Json, status: int = 200, **body: Any) -> Json:
        given = {"conditions": list(conditions) or [{"type": "exit"}], "timeout_s": 60, **body}
        return self.guest.call("POST", f"/v1/processes/{process_id}/wait", given, status=status)

    def finish(self, process_id: str) -> Json:
        process: Json = self.wait(process_id, timeout_s=60)["process"]
        return process

    def output(self, process_id: str, **query: Any) -> Json:
        response = self.guest.http.get(f"/v1/processes/{process_id}/output", params=query)
        assert response.status_code == 200, response.text
        answer: Json = response.json()
        return answer

    def events(self, process_id: str, **query: Any) -> Iterator[Json]:
        with self.guest.http.stream("GET", f"/v1/processes/{process_id}/events", params=query) as response:
            assert response.status_code == 200, response.read()
            yield from parse_sse(response.iter_lines())


def log(pattern: str, **more: Any) -> Json:
    return {"type": "log", "pattern": pattern, **more}


def port(number: int, **more: Any) -> Json:
    return {"type": "port", "port": number, **more}
