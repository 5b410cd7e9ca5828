"""Output of threads and processes: it belongs to the run that started them, and to nobody else's run."""

from __future__ import annotations

from guest_process import Context, text


def test_a_thread_that_prints_after_its_cell_prints_into_no_other_run(context: Context) -> None:
    """2.3: a thread printing after the cell ended corrupted the following run. J: stock ipykernel gives it to the next
    cell. ipywidgets#4020: thread output lost under ipykernel 7."""
    code = """
import threading
go, done = threading.Event(), threading.Event()
def work():
    print('early')
    go.wait()
    print('late')
    done.set()
threading.Thread(target=work).start()
"""
    first = context.ok(code)
    second = context.ok("go.set()\n_ = done.wait(60)\nprint('mine')")
    assert text(second) == "mine\n"
    context.context_until("stdout", run_id=first["id"], text="late\n")
    assert "late" not in text(context.get(first["id"]))


def test_a_thread_that_prints_while_its_cell_runs_prints_into_its_run(shared: Context) -> None:
    run = shared.ok(
        "import threading\nt = threading.Thread(target=print, args=('from a thread',))\nt.start()\nt.join()"
    )
    assert text(run) == "from a thread\n"


def test_a_thread_can_display(shared: Context) -> None:
    """ipython/ipykernel#1450: 7.0.0 could not display from threads."""
    run = shared.ok("import threading\nt = threading.Thread(target=display, args=('shown',))\nt.start()\nt.join()")
    assert [output["data"]["text/plain"] for output in run["outputs"]] == ["'shown'"]


def test_a_thread_started_by_a_thread_follows_its_cell(context: Context) -> None:
    code = """
import threading
go, done = threading.Event(), threading.Event()
def inner():
    go.wait(); print('deep'); done.set()
outer = threading.Thread(target=lambda: threading.Thread(target=inner).start())
outer.start(); outer.join()
"""
    first = context.ok(code)
    assert text(context.ok("go.set(); _ = done.wait(60)")) == ""
    context.context_until("stdout", run_id=first["id"], text="deep\n")


def test_work_in_an_executor_belongs_to_the_cell_that_submitted_it(context: Context) -> None:
    """The threads of a pool are older than the cell that gives them work."""
    context.ok(
        "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\npool.submit(int).result()"
    )
    assert text(context.ok("pool.submit(print, 'second').result()")) == "second\n"
    assert text(context.ok("import asyncio\nawait asyncio.to_thread(print, 'third')")) == "third\n"


def test_an_asyncio_task_keeps_its_cell(context: Context) -> None:
    """J: asyncio tasks keep their own cell."""
    code = "import asyncio\ngo = asyncio.Event()\nasync def work():\n  await go.wait()\n  print('task')"
    first = context.ok(code + "\ntask = asyncio.ensure_future(work())")
    assert text(context.ok("go.set()\nawait task\nprint('mine')")) == "mine\n"
    context.context_until("stdout", run_id=first["id"], text="task\n")


def test_a_background_process_prints_into_no_other_run(context: Context) -> None:
    """J: fd output is parented to the newest cell, and may come after idle."""
    code = "import subprocess\np = subprocess.Popen(['sh', '-c', 'read go; echo late'], stdin=subprocess.PIPE)"
    first = context.ok(code)
    second = context.ok("p.stdin.write(b'go\\n')\np.stdin.close()\n_ = p.wait()\nprint('mine')")
    assert text(second) == "mine\n"
    context.context_until("stdout", run_id=first["id"], text="late\n")


def test_a_daemon_that_left_the_kernel_prints_into_no_other_run(context: Context) -> None:
    """The shell is waited for and gone, its background child has no parent left that we know."""
    fifo = context.guest.home / "fifo"
    code = f"import os\nos.mkfifo({str(fifo)!r})\n_ = os.system('(read go < {fifo}; echo late) &')"
    first = context.ok(code)
    second = context.ok(f"with open({str(fifo)!r}, 'w') as f: f.write('go\\n')\nprint('mine')")
    assert text(second) == "mine\n"
    context.context_until("stdout", run_id=first["id"], text="late\n")


def test_all_a_finished_child_wrote_is_in_its_run(shared: Context) -> None:
    """sandbox-sdk#827: the stream was cut short. A child that has ended has written everything: no grace time needed."""
    for size in (10, 100_000, 3_000_000):
        run = shared.ok(f"import subprocess, sys\n_ = subprocess.run([sys.executable, '-c', 'print(\"x\" * {size})'])")
        assert len(text(run)) == size + 1


def test_a_display_of_a_thread_after_its_run_is_told_in_the_context(context: Context) -> None:
    code = "import threading\ngo, done = threading.Event(), threading.Event()\n"
    code += "def work():\n  go.wait()\n  display('late')\n  done.set()\nthreading.Thread(target=work).start()"
    first = context.ok(code)
    assert context.ok("go.set(); _ = done.wait(60)")["outputs"] == []
    event = context.context_until("display", run_id=first["id"])
    assert event["data"]["data"] == {"text/plain": "'late'"}
