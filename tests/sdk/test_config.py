"""Which server and which key: pure, over made-up environments and files."""

from pathlib import Path

import pytest

from cloche import InvalidRequest, Unauthenticated
from cloche._config import load_config


def no_files(path: Path) -> str:
    raise FileNotFoundError(path)


def files(content: dict[str, str]):  # type: ignore[no-untyped-def]
    def read(path: Path) -> str:
        if str(path) not in content:
            raise PermissionError(path)
        return content[str(path)]

    return read


def test_arguments_win_over_the_environment() -> None:
    environ = {"CLOCHE_URL": "http://a:1", "CLOCHE_API_KEY": "x"}
    config = load_config("http://b:2/", "y", environ, no_files)
    assert (config.url, config.api_key, config.is_loopback) == ("http://b:2", "y", False)


def test_the_environment_wins_over_defaults() -> None:
    config = load_config(None, None, {"CLOCHE_URL": "https://a/prefix/", "CLOCHE_API_KEY": "x"}, no_files)
    assert (config.url, config.api_key) == ("https://a/prefix", "x")


def test_on_loopback_the_servers_first_key_is_found() -> None:
    read = files({"/home/u/.local/share/cloche/admin.key": "from-file\n"})
    config = load_config(None, None, {"HOME": "/home/u"}, read)
    assert (config.url, config.api_key, config.is_loopback) == ("http://127.0.0.1:8720", "from-file", True)
    assert config.key_file == Path("/home/u/.local/share/cloche/admin.key")
    assert load_config(None, "given", {"HOME": "/home/u"}, read).key_file is None


def test_the_users_own_data_directory_may_be_elsewhere() -> None:
    read = files({"/xdg/cloche/admin.key": "mine"})
    assert load_config(None, None, {"HOME": "/home/u", "XDG_DATA_HOME": "/xdg"}, read).api_key == "mine"


def test_a_data_dir_that_was_told_is_the_only_place() -> None:
    read = files({"/var/lib/cloche/admin.key": "other", "/data/admin.key": "mine"})
    assert load_config(None, None, {"CLOCHE_DATA_DIR": "/data"}, read).api_key == "mine"


def test_a_key_from_a_file_goes_to_no_other_machine() -> None:
    read = files({"/var/lib/cloche/admin.key": "secret"})
    with pytest.raises(Unauthenticated, match=r"no API key for http://example\.com") as caught:
        load_config("http://example.com", None, {}, read)
    assert "CLOCHE_API_KEY" in (caught.value.hint or "")


def test_a_missing_key_says_where_it_was_looked_for() -> None:
    with pytest.raises(Unauthenticated) as caught:
        load_config(None, None, {"HOME": "/home/u"}, no_files)
    assert "/home/u/.local/share/cloche/admin.key" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "url", ["ftp://x", "127.0.0.1:8720", "http://", "http://x:port", "http://x/?q=1", "http://u:p@x"]
)
def test_what_is_no_server_url_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        load_config(url, "k", {}, no_files)


@pytest.mark.parametrize("key", ["a\nb", "schlüssel"])
def test_a_key_that_cannot_be_one_is_refused_before_it_is_sent(key: str) -> None:
    with pytest.raises(InvalidRequest):
        load_config(None, key, {}, no_files)


def test_the_key_is_not_in_repr() -> None:
    assert "s3cret" not in repr(load_config(None, "s3cret", {}, no_files))


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("[::1]", True),
        ("localhost", True),
        ("10.0.0.1", False),
        ("localhost.evil.example", False),
    ],
)
def test_loopback_is_recognised(host: str, loopback: bool) -> None:
    assert load_config(f"http://{host}:1", "k", {}, no_files).is_loopback is loopback
