"""Settings: where they come from, and what is said of bad ones."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from cloche.errors import Conflict, InvalidRequest
from cloche_server.data_dir import exclusive
from cloche_server.settings import default_data_dir, default_run_dir, load_settings


def test_the_command_line_wins_over_the_environment_over_the_defaults() -> None:
    environ = {"CLOCHE_PORT": "9000", "CLOCHE_HOST": "::1", "CLOCHE_ALLOWED_HOSTS": "A.example, b.example,"}
    settings = load_settings({"port": 9001, "driver": None}, environ)
    assert (settings.port, settings.host, settings.driver) == (9001, "::1", None)
    assert settings.allowed_hosts == ("a.example", "b.example")
    assert settings.shutdown_grace_s == 10


def test_directories_depend_on_who_runs_it() -> None:
    assert default_data_dir({}, uid=0) == Path("/var/lib/cloche")
    assert default_run_dir({}, uid=0) == Path("/run/cloche")
    assert default_data_dir({"XDG_DATA_HOME": "/d"}, uid=1000) == Path("/d/cloche")
    assert default_run_dir({"XDG_RUNTIME_DIR": "/r"}, uid=1000) == Path("/r/cloche")
    assert default_run_dir({}, uid=1000) == Path("/tmp/cloche-1000")


def test_a_bad_setting_is_named() -> None:
    with pytest.raises(InvalidRequest, match="port"):
        load_settings({"port": "x"}, {})
    with pytest.raises(InvalidRequest, match="driver"):
        load_settings({}, {"CLOCHE_DRIVER": "docker"})


def test_one_server_for_one_directory(tmp_path: Path) -> None:
    with exclusive(tmp_path / "data", tmp_path / "run"):
        with pytest.raises(Conflict, match=str(os.getpid())), exclusive(tmp_path / "other", tmp_path / "run"):
            pass
        assert stat.S_IMODE((tmp_path / "data/server.lock").stat().st_mode) == 0o600
    with exclusive(tmp_path / "data", tmp_path / "run"):
        pass


def test_a_directory_that_cannot_be_made_is_a_typed_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequest, match="cannot be used"), exclusive(tmp_path / "file" / "data"):
        pass
