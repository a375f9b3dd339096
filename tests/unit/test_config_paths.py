"""Where the state, the config file and the store are."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetgate.config.errors import ConfigError
from fleetgate.config.paths import config_path, expand_home, sqlite_folder, state_folder, store_url

HOME = {"HOME": "/home/ada"}


@pytest.fixture(autouse=True)
def linux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")


def test_c3_the_state_folder_is_the_platforms_own() -> None:
    assert state_folder(HOME) == "/home/ada/.local/state/fleetgate"
    assert state_folder({**HOME, "XDG_STATE_HOME": "/xdg/"}) == "/xdg/fleetgate"


def test_c1_the_config_file_is_in_the_platforms_own_folder() -> None:
    assert config_path(HOME) == "/home/ada/.config/fleetgate/config.toml"
    assert config_path({"XDG_CONFIG_HOME": "/xdg"}) == "/xdg/fleetgate/config.toml"


def test_c1_a_relative_xdg_folder_is_ignored_as_the_standard_says() -> None:
    assert state_folder({**HOME, "XDG_STATE_HOME": "state"}) == "/home/ada/.local/state/fleetgate"
    assert config_path({**HOME, "XDG_CONFIG_HOME": ""}) == "/home/ada/.config/fleetgate/config.toml"


def test_c1_on_macos_both_are_in_application_support(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    folder = "/home/ada/Library/Application Support/fleetgate"
    assert state_folder({**HOME, "XDG_STATE_HOME": "/xdg"}) == folder
    assert config_path(HOME) == f"{folder}/config.toml"
    assert store_url(HOME) == f"sqlite://{folder}"


def test_c3_the_environment_names_folder_file_and_store() -> None:
    environ = {"FLEETGATE_HOME": "/s/", "FLEETGATE_CONFIG": "/c.toml", "FLEETGATE_STORE": "sqlite:///db/"}
    assert (state_folder(environ), config_path(environ), store_url(environ)) == ("/s", "/c.toml", "sqlite:///db")


def test_c3_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEETGATE_HOME", "/s")
    monkeypatch.setenv("FLEETGATE_CONFIG", "/c.toml")
    monkeypatch.delenv("FLEETGATE_STORE", raising=False)
    assert (state_folder(), config_path(), store_url()) == ("/s", "/c.toml", "sqlite:///s")


def test_c3_the_store_is_sqlite_in_the_state_folder() -> None:
    assert store_url({"FLEETGATE_HOME": "/a b/c#d?e%20"}) == "sqlite:///a b/c#d?e%20"
    assert sqlite_folder("sqlite:///a b/c#d?e%20") == "/a b/c#d?e%20"
    assert store_url({"FLEETGATE_STORE": "memory://"}) == "memory://"
    assert sqlite_folder("memory://") is None


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://relative",
        "sqlite://",
        "sqlite:x",
        "memory://x",
        "mysql://u:hunter2@h/d",
        "u:hunter2@h",
        "hunter2",
        "postgresql://",
    ],
)
def test_c3_a_store_that_cannot_be_one_is_refused_without_showing_a_password(url: str) -> None:
    with pytest.raises(ConfigError, match=r"FLEETGATE_STORE: (found|unsupported) .*; valid is sqlite:") as caught:
        store_url({"FLEETGATE_STORE": url})
    assert "hunter2" not in str(caught.value)


def test_c3_a_postgresql_store_is_taken_as_it_is_written() -> None:
    url = "postgresql://u:hunter2@h:6432/d?namespace=team-a&sslmode=require"
    assert store_url({"FLEETGATE_STORE": url}) == url
    assert store_url({"FLEETGATE_STORE": "postgres://h/d"}) == "postgresql://h/d"
    assert sqlite_folder(url) is None


@pytest.mark.parametrize("home", [{}, {"HOME": ""}, {"HOME": "relative"}])
def test_c3_without_a_home_the_sentence_says_what_to_set(home: dict[str, str]) -> None:
    for find, instead in (
        (state_folder, "FLEETGATE_HOME"),
        (config_path, "FLEETGATE_CONFIG"),
        (store_url, "FLEETGATE_HOME"),
    ):
        with pytest.raises(ConfigError, match=f"HOME: .*home folder, or set {instead}"):
            find(home)


def test_c3_a_relative_state_folder_is_refused_as_it_would_be_another_gate_in_each_directory() -> None:
    with pytest.raises(ConfigError, match="FLEETGATE_HOME: found 'state'; valid is an absolute path"):
        state_folder({"FLEETGATE_HOME": "state"})


def test_c1_a_relative_config_file_is_below_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert config_path({"FLEETGATE_CONFIG": "here.toml"}) == str(tmp_path / "here.toml")


def test_q2_a_current_directory_that_is_gone_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match=r"FLEETGATE_CONFIG: 'here\.toml' is relative, and"):
        config_path({"FLEETGATE_CONFIG": "here.toml"})


def test_c3_only_a_leading_tilde_is_expanded() -> None:
    environ = {"HOME": "/home/ada/", "SECRET": "x"}
    assert expand_home("~/a", environ) == "/home/ada/a"
    assert expand_home("~", environ) == "/home/ada"
    assert expand_home("/a/$SECRET/~", environ) == "/a/$SECRET/~"
    assert expand_home("~bob/a", environ) == "~bob/a"
    assert state_folder({**environ, "FLEETGATE_HOME": "~/s"}) == "/home/ada/s"
    with pytest.raises(ConfigError, match="HOME: is not set; set it"):
        expand_home("~/a", {})
