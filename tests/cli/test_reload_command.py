"""Changing a hive while it serves: reload, drain, scale. Real processes, and streams that must not break."""

import json
import urllib.error

import pytest
from hive_client import ask, rest_of, rows_of, streaming
from in_process import refused

from skep.cli.control import parse_wanted
from skep.config.keys import keys_path
from skep.paths import user_paths
from skep.supervisor.control import ask as ask_control
from skep.supervisor.control import socket_of

SLOW = ["--token-ms=20"]


@pytest.fixture
def reload(skep):
    return lambda *args: json.loads(skep("reload", "--wait", "--json", *args, check=0).stdout)


@pytest.fixture
def status(env):
    paths = user_paths(env)
    return lambda: ask_control(socket_of(paths.lock, paths.socket), {"op": "status"})


def refusal(url, **kwargs):
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(url, **kwargs)
    with caught.value as error:
        return error.code, json.load(error)["error"]["code"]


@pytest.mark.slow
def test_a_request_that_comes_while_its_only_replica_changes_waits(skep, configure, up):
    configure({"extra": SLOW})
    url = up()["url"]
    with streaming(url, max_tokens=400) as sock:
        received = sock.recv(1000)
        configure({"extra": ["--load-s=0.3"]})
        skep("reload", check=0)
        assert rows_of(skep)["fake-model-0"]["state"] == "draining"
        assert "another reload is in progress" in skep("reload", check=1).stderr
        assert ask(url)[0] == 200
        received = rest_of(sock, received)
    assert b"[DONE]" in received
    assert rows_of(skep)["fake-model-0"]["state"] == "ready"


def test_down_in_the_middle_of_a_reload_leaves_nothing_behind(skep, configure, up):
    configure({"extra": SLOW})
    url = up()["url"]
    with streaming(url, max_tokens=150) as sock:
        received = sock.recv(1000)
        configure({"slots": 3}, {"model": "other"})
        skep("reload", check=0)
        skep("down", check=0)
        received = rest_of(sock, received)
    assert b"[DONE]" in received
    assert json.loads(skep("ps", "--json", check=0).stdout) == []


def test_what_the_command_line_said_goes_on_winning(skep, configure, up, reload):
    """A reload is no way to lose `--replicas 2`."""
    configure()
    up("--replicas", "2", "--slots", "3")
    configure({"slots": 1, "context": 4096})
    assert reload()["changed"] == ["fake-model-0", "fake-model-1"]
    assert rows_of(skep)["gateway"]["slots"] == 6


def test_without_the_last_key_nobody_comes_in_from_outside(skep, configure, reload, env):
    configure()
    key = skep("key", "add", "agent", check=0).stdout.strip()
    keys_path(user_paths(env)).chmod(0o644)
    started = skep("up", "-d", "--json", "--host", "0.0.0.0", check=0)
    assert "warning: other users can read" in started.stderr
    port = json.loads(started.stdout)["url"].rpartition(":")[2]
    url = f"http://127.0.0.1:{port}"
    assert ask(url, key=key)[0] == 200
    skep("key", "remove", "agent", check=0)
    assert "no key is left: every request is refused" in reload()["warnings"][0]
    assert refusal(url, key=key) == (401, "invalid_api_key")


def test_the_key_of_the_environment_survives_a_reload_from_a_shell_without_it(configure, up, reload):
    configure()
    url = up(SKEP_API_KEY="secret")["url"]
    reload()
    assert refusal(url) == (401, "invalid_api_key")
    assert ask(url, key="secret")[0] == 200


@pytest.mark.parametrize("command", ["reload", "drain x", "undrain x", "scale m=2"])
def test_without_a_hive_there_is_nothing_to_change(paths, command):
    assert refused(*command.split(), code=1).startswith("skep is not running")


@pytest.mark.parametrize("wanted", ["m=", "=3", "m=-1", "m=1.5", "m=²"])
def test_what_is_no_model_and_number_is_refused(paths, wanted):
    assert "is not MODEL=N" in refused("scale", wanted)
    assert parse_wanted("a=b=3") == ("a=b", 3)
