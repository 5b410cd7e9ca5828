"""The public names, and what importing them costs."""

import subprocess
import sys

import pytest

import cloche
import cloche.models


def test_all_is_sorted_and_every_name_can_be_imported() -> None:
    assert cloche.__all__ == sorted(set(cloche.__all__))
    assert all(getattr(cloche, name) is not None for name in cloche.__all__)


def test_the_public_names_are_these() -> None:
    errors = {
        name
        for name, value in vars(cloche.errors).items()
        if isinstance(value, type) and value.__module__ == "cloche.errors"
    }
    others = set(cloche.__all__) - errors
    assert errors - set(cloche.__all__) == {"ErrorBody"}
    assert others == {
        "AsyncClient", "AsyncContext", "AsyncContexts", "AsyncKeys", "AsyncRunHandle", "AsyncSandbox",
        "Client", "Context", "Contexts", "Keys", "RunHandle", "Sandbox",
        "AsyncAttachment", "AsyncTerminal", "AsyncTerminals", "Attachment", "Terminal", "TerminalEnded", "TerminalGap",
        "Terminals",
        "AsyncProcess", "AsyncProcesses", "AsyncServices", "Process", "Processes", "Services",
        "AsyncPreview", "Preview",
        "ExecFailed", "ExecResult", "Output", "output_bytes",
        "AsyncFileWatch", "AsyncFiles", "ChangeSet", "FileChange", "FileWatch", "Files", "TreeDownload",
        "AsyncVolumes", "Volumes",
        "AsyncForkResult", "AsyncSnapshots", "ForkResult", "Snapshots",
        "AsyncIntents", "AsyncPools", "AsyncTemplates", "Intents", "Pools", "Templates",
        "LifecyclePolicy", "Retention",
        "Event", "ImageOutput", "Resources", "RunFailed", "RunResult", "RunStatus",
    }  # fmt: skip


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = cloche.nothing  # type: ignore[attr-defined]


def test_dir_lists_the_lazy_names() -> None:
    assert set(cloche.__all__) <= set(dir(cloche))


def test_every_model_can_be_imported_from_the_package() -> None:
    code = "import cloche.models as m; print(sorted(m.__all__) == sorted(m._HOME), len([getattr(m, n) for n in m.__all__]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", str(len(cloche.models.__all__))]
    with pytest.raises(AttributeError, match="Nothing"):
        _ = cloche.models.Nothing  # type: ignore[attr-defined]


def test_the_guests_imports_load_no_client() -> None:
    code = (
        "import sys, cloche.models, cloche.journal, cloche.errors\n"
        "heavy = {'httpx', 'httpx_sse', 'httpcore', 'click', 'rich', 'websockets'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_sync_and_async_offer_the_same() -> None:
    pairs = [
        (cloche.Sandbox, cloche.AsyncSandbox),
        (cloche.Context, cloche.AsyncContext),
        (cloche.Files, cloche.AsyncFiles),
        (cloche.Contexts, cloche.AsyncContexts),
        (cloche.RunHandle, cloche.AsyncRunHandle),
        (cloche.Terminals, cloche.AsyncTerminals),
        (cloche.Terminal, cloche.AsyncTerminal),
        (cloche.Attachment, cloche.AsyncAttachment),
        (cloche.Client, cloche.AsyncClient),
        (cloche.Keys, cloche.AsyncKeys),
        (cloche.Process, cloche.AsyncProcess),
        (cloche.Processes, cloche.AsyncProcesses),
        (cloche.Services, cloche.AsyncServices),
        (cloche.Preview, cloche.AsyncPreview),
        (cloche.Volumes, cloche.AsyncVolumes),
        (cloche.Snapshots, cloche.AsyncSnapshots),
        (cloche.Templates, cloche.AsyncTemplates),
        (cloche.Pools, cloche.AsyncPools),
        (cloche.Intents, cloche.AsyncIntents),
        (cloche.ForkResult, cloche.AsyncForkResult),
    ]
    for blocking, awaiting in pairs:
        assert public(blocking) == public(awaiting)


def public(cls: type) -> set[str]:
    return {name for name in dir(cls) if not name.startswith("_")}


def test_help_shows_methods_as_users_call_them() -> None:
    import inspect

    signature = inspect.signature(cloche.Sandbox.run)
    assert cloche.Sandbox.run.__name__ == "run"
    assert list(signature.parameters)[:2] == ["self", "code"]
    assert signature.return_annotation == "RunResult"
    assert "never runs the code twice" in (cloche.AsyncSandbox.run.__doc__ or "")
