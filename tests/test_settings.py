import os
from pathlib import Path

import pytest

from skep.configfile import load_settings, parse_settings
from skep.errors import UserError
from skep.settings import MAX_SOCKET_PATH, Settings, make_runtime, user_paths


def test_folders_follow_xdg_and_ignore_relative_values(tmp_path):
    paths = user_paths({"HOME": "/home/bee", "XDG_DATA_HOME": str(tmp_path), "XDG_CACHE_HOME": "relative"})
    assert paths.store == tmp_path / "skep" / "skep.sqlite3"
    assert paths.cache == Path("/home/bee/.cache/skep")


def test_two_installations_do_not_share_a_control_socket(tmp_path):
    """Only the state folder differs, and the runtime folder is the same for both."""
    shared = {"HOME": "/home/bee", "XDG_RUNTIME_DIR": str(tmp_path)}
    one = user_paths({**shared, "XDG_STATE_HOME": "/a"})
    other = user_paths({**shared, "XDG_STATE_HOME": "/b"})
    assert one.socket != other.socket
    assert one.runtime.parent == other.runtime.parent == tmp_path


def test_a_runtime_folder_too_long_for_a_socket_is_replaced_by_a_short_one(tmp_path):
    long = tmp_path / ("x" * 120)
    long.mkdir()
    paths = user_paths({"HOME": "/home/bee", "XDG_RUNTIME_DIR": str(long)})
    assert len(os.fsencode(paths.socket)) <= MAX_SOCKET_PATH


def test_a_runtime_folder_that_others_can_enter_is_refused(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir(mode=0o755)
    with pytest.raises(UserError, match="not private"):
        make_runtime(folder)


def test_without_a_file_the_embedded_model_is_served(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_settings(None, user_paths({"HOME": str(tmp_path)}), {}) == Settings()


def test_a_file_in_the_folder_is_used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "skep.toml").write_text('[gateway]\nport = 9000\nmax_wait = "2m"\n[[serve]]\nslots = 8\nreplicas = 2\n')
    settings = load_settings(None, user_paths({"HOME": str(tmp_path)}), {"SKEP_API_KEY": "secret"})
    assert (settings.gateway.port, settings.gateway.max_wait_s, settings.gateway.api_key) == (9000, 120.0, "secret")
    assert (settings.serve[0].slots, settings.serve[0].replicas) == (8, 2)


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({"gateway": {"prot": 1}}, "gateway.prot"),
        ({"serve": [{"slots": 0}]}, "serve.0.slots"),
        ({"serve": [{"slots": "4"}]}, "serve.0.slots"),
        ({"serve": []}, "serve"),
    ],
)
def test_a_wrong_key_or_value_is_named_with_its_place(document, where):
    with pytest.raises(UserError) as caught:
        parse_settings(document, "skep.toml", {})
    assert f"skep.toml: `{where}`" in caught.value.message
    assert caught.value.hint


def test_a_file_that_is_no_toml_is_named(tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text("[gateway\n")
    with pytest.raises(UserError, match=r"bad\.toml cannot be read"):
        load_settings(bad, user_paths({"HOME": str(tmp_path)}), {})


def test_a_file_that_is_asked_for_must_exist(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        load_settings(tmp_path / "no.toml", user_paths({"HOME": str(tmp_path)}), {})
