"""Changing a hive while it serves: reload, drain, scale. Real processes, and streams that must not break."""

import json

import pytest
from hive_client import ask, refusal, rest_of, rows_of, streaming
from in_process import refused

from skep.cli.control import parse_wanted
from skep.config.keys import keys_path
from skep.paths import user_paths

SLOW = ["--token-ms=20"]


@pytest.fixture
def reload(skep):
    return lambda *args: json.loads(skep("reload", "--wait", "--json", *args, check=0).stdout)


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


def test_what_the_command_line_and_its_environment_said_goes_on_winning(skep, configure, up, reload):
    """A reload, from a shell without the key too, is no way to lose it or `--replicas 2`."""
    configure()
    url = up("--replicas", "2", "--slots", "3", SKEP_API_KEY="secret")["url"]
    configure({"slots": 1, "context": 4096})
    assert reload()["changed"] == ["fake-model-0", "fake-model-1"]
    assert rows_of(skep)["gateway"]["slots"] == 6
    assert refusal(url) == (401, "invalid_api_key")
    assert ask(url, key="secret")[0] == 200


@pytest.mark.parametrize(
    "command", ["reload", "drain x", "undrain x", "scale m=2", "load a", "ps", "down", "restart gateway"]
)
def test_without_a_hive_there_is_nothing_to_change(paths, command):
    assert refused(*command.split(), code=1) == "skep is not running | start it with `skep up -d`"


@pytest.mark.parametrize("wanted", ["m=", "=3", "m=-1", "m=1.5", "m=²"])
def test_what_is_no_model_and_number_is_refused(paths, wanted):
    assert "is not MODEL=N" in refused("scale", wanted)
    assert parse_wanted("a=b=3") == ("a=b", 3)
