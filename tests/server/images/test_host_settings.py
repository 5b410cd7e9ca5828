"""Which of this machine's settings a build sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloche_server.images.host_settings import environment, pip_conf, write_settings


def test_index_settings_go_into_the_build_and_other_pip_settings_do_not(lines: list[str]) -> None:
    settings = {
        "index-url": "https://index.example/simple",
        "constraint": "/etc/c.txt",
        "cache-dir": "/tmp/c",
        "proxy": "",
    }
    assert pip_conf(settings, lines.append) == "[global]\nindex-url = https://index.example/simple\n"
    assert lines == []


def test_indexes_that_lie_on_this_machine_are_left_out_and_that_is_said(lines: list[str]) -> None:
    settings = {"extra-index-url": "file:///opt/a https://b.example/simple", "find-links": "/opt/wheels"}
    assert pip_conf(settings, lines.append) == "[global]\nextra-index-url = https://b.example/simple\n"
    assert lines == [
        "pip's extra-index-url file:///opt/a lies on this machine: not used inside the build",
        "pip's find-links /opt/wheels lies on this machine: not used inside the build",
    ]


def test_the_ca_bundle_is_the_one_this_process_was_told_to_use(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bundle.pem").write_text("a certificate")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "bundle.pem"))
    write_settings(tmp_path / "settings", lines.append, debian=True)
    assert (tmp_path / "settings/ca.pem").read_text() == "a certificate"


def test_every_variable_points_at_a_file_that_is_written(tmp_path: Path, lines: list[str]) -> None:
    write_settings(tmp_path / "settings", lines.append, debian=True)
    for value in environment().values():
        assert (tmp_path / "settings" / Path(value).name).is_file(), value
    assert "Dir::Etc::sourcelist" in (tmp_path / "settings/apt.conf").read_text()
    assert "bookworm main" in (tmp_path / "settings/sources.list").read_text()


def test_apt_keeps_the_images_own_sources_on_another_distribution(tmp_path: Path, lines: list[str]) -> None:
    write_settings(tmp_path / "settings", lines.append, debian=False)
    assert "Dir::Etc" not in (tmp_path / "settings/apt.conf").read_text()
