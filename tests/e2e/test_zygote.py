"""Kernels that are forked in real sandboxes, with the libraries of the image: what tests/guest cannot have."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

Make = Callable[..., str]
ZYGOTE_S = 120.0


class Sandbox:
    def __init__(self, client: httpx.Client, sandbox_id: str) -> None:
        self.client = client
        self.path = f"/v1/sandboxes/{sandbox_id}"

    def call(self, method: str, path: str, body: object = None) -> Any:
        answer = self.client.request(method, self.path + path, json=body, timeout=120)
        assert answer.is_success, answer.text
        return answer.json()

    def run(self, context: str, code: str) -> dict[str, Any]:
        run: dict[str, Any] = self.call("POST", f"/contexts/{context}/runs?wait_s=60", {"code": code})
        assert run["status"] == "ok", run
        return run

    def value(self, context: str, code: str) -> str:
        return str(self.run(context, code)["outputs"][-1]["data"]["text/plain"])

    def fork_context(self) -> str:
        """The zygote learns from kernels what they use, after each context; until it has, contexts begin without it."""
        end = time.monotonic() + ZYGOTE_S
        while time.monotonic() < end:
            context: str = self.call("POST", "/contexts", {})["id"]
            if self.value(context, "import sys; 'matplotlib.pyplot' in sys.modules") == "True":
                return context
            self.call("DELETE", f"/contexts/{context}")
        raise AssertionError(f"no kernel had the data stack within {ZYGOTE_S} s")


FIGURE = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"
MATMUL = """
import numpy as np, threadpoolctl
a = np.arange(90_000.0).reshape(300, 300)
int((a @ a).sum() > 0), {pool['num_threads'] for pool in threadpoolctl.threadpool_info()}
"""


@pytest.mark.timeout(300)
def test_kernels_begin_with_the_data_stack_that_others_use(
    client: httpx.Client, make_sandbox: Make, driver: str
) -> None:
    sandbox = Sandbox(client, make_sandbox(driver=driver))
    sandbox.run("default", "import numpy, pandas, matplotlib.pyplot")
    one, two = sandbox.fork_context(), sandbox.fork_context()
    assert sandbox.value(one, "import pandas; int(pandas.DataFrame({'a': [1, 2]})['a'].sum())") == "3"
    draw = "import numpy; numpy.random.random()"
    assert sandbox.value(one, draw) != sandbox.value(two, draw)
    assert sandbox.value(one, MATMUL) == sandbox.value("default", MATMUL)  # with as many threads
    shown = sandbox.run(two, FIGURE)["outputs"]
    assert [output["type"] for output in shown if "image/png" in output.get("data", {})] == ["display"]
    assert sandbox.run("default", FIGURE)["outputs"][-1]["data"].keys() == shown[-1]["data"].keys()
