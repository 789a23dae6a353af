"""Engines of a hive on this machine want a key: neither other users nor web pages reach them past the gateway."""

import json
import os
import signal
import stat
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hive_client import ask, eventually, rows_of
from in_process import refused

from skep.engines.base import KEY_FILE
from skep.host.processes import descendants
from skep.paths import user_paths
from skep.supervisor.control import local_key

SMALL = ("-c", "1", "--runs", "1", "--max-tokens", "4", "--warm-up", "quick")


@pytest.fixture(autouse=True)
def _configured(configure):
    configure({"extra": ["--token-ms=1"]})


@pytest.fixture
def key_file(env):
    return user_paths(env).state / KEY_FILE


def status_of(url, key=None):
    """Of one request past the gateway."""
    try:
        return ask(url, key=key)[0]
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_an_engine_answers_to_a_key_in_one_file_of_its_users_own_that_ends_with_the_hive(skep, up, key_file, env):
    """Not in what skep shows, not in a log, not among the words of a process that `ps` shows to everybody."""
    ready = up()
    key = key_file.read_text().strip()
    engine = rows_of(skep)["fake-model-0"]["url"]
    assert ask(ready["url"])[0] == 200
    assert status_of(engine) == status_of(engine, key="another") == 401
    assert status_of(engine, key=key) == 200
    assert len(key) > 30
    assert stat.S_IMODE(key_file.stat().st_mode) == 0o600
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in (ready["pid"], *descendants(ready["pid"]))]
    assert len(commands) == 4  # supervisor, gateway, guard, engine
    shown = [skep(*words, check=0).stdout for words in (("ps",), ("ps", "--json"), ("top", "--once"))]
    logs = [path.read_text() for path in user_paths(env).logs.iterdir()]
    assert key not in "\n".join([*commands, *shown, *logs, json.dumps(ready)])
    skep("down", check=0)
    assert not key_file.exists()


def test_the_key_survives_a_new_replica_a_dead_engine_and_a_dead_gateway(skep, up, configure, key_file):
    url = up()["url"]
    key, before = key_file.read_text().strip(), rows_of(skep)
    configure({"replicas": 2, "extra": ["--token-ms=1"]})
    told = json.loads(skep("reload", "--wait", "--json", check=0).stdout)
    assert (told["added"], told["unchanged"]) == (["fake-model-1"], ["fake-model-0"])
    for name in ("fake-model-0", "gateway"):
        os.kill(before[name]["pid"], signal.SIGKILL)
    eventually(lambda: all(row["state"] == "ready" for row in rows_of(skep).values()))
    rows = rows_of(skep)
    assert all(rows[name]["pid"] != before[name]["pid"] for name in ("fake-model-0", "gateway"))
    for name in ("fake-model-0", "fake-model-1"):
        assert status_of(rows[name]["url"]) == 401
        assert status_of(rows[name]["url"], key=key) == 200
    assert [ask(url)[0] for _ in range(4)] == [200] * 4


def test_a_skep_that_was_killed_is_followed_by_one_with_a_key_that_works(skep, up, key_file):
    ready = up()
    before = key_file.read_text()
    os.kill(ready["pid"], signal.SIGKILL)
    again = up()
    assert key_file.read_text() != before
    assert ask(again["url"])[0] == 200


def test_without_a_hive_only_the_gateways_own_key_is_sent_and_to_this_machine_only(env, tmp_path):
    own, paths = {**env, "SKEP_API_KEY": "of-the-gateway"}, user_paths(env)
    assert local_key("http://localhost:8400/v1", own, paths) == "of-the-gateway"
    assert local_key("http://10.1.2.3:8400", own, paths) is None
    assert local_key("http://127.0.0.1:8400", env, paths) is None


def test_a_key_in_the_settings_of_an_engine_is_refused_with_what_to_do(paths, tmp_path):
    """Two keys cannot be: the gateway sends the hive's own."""
    (tmp_path / "m.gguf").write_bytes(b"")
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    (tmp_path / "skep.toml").write_text(
        f'[gateway]\nport = 0\n[[serve]]\nmodel = "org/m"\nengine = "vllm"\nbinary = "{program}"\n'
        'extra = ["--api-key", "another"]\n'
    )
    said = refused("up", "-d")
    assert "--api-key" in said
    assert "another" not in said
