"""Changing a hive while it serves: reload, drain, scale. Real processes, and streams that must not break."""

import json
import subprocess
import sys
import urllib.error

import pytest
from hive_client import ask, eventually, rest_of, rows_of, streaming
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


def test_a_reload_adds_and_removes_replicas_while_a_stream_goes_on(skep, configure, up, reload):
    configure({"replicas": 2, "extra": SLOW})
    url = up()["url"]
    before = rows_of(skep)
    with streaming(url, max_tokens=150) as sock:
        received = sock.recv(1000)
        busy = next(name for name, row in rows_of(skep).items() if row["kind"] == "replica" and row["busy"])
        configure({"replicas": 3, "extra": SLOW}, {"model": "other"})
        assert reload() == {
            "added": ["fake-model-2", "other-0"],
            "removed": [],
            "changed": [],
            "adjusted": [],
            "unchanged": ["fake-model-0", "fake-model-1"],
            "left_out": [],
            "warnings": [],
        }
        during = rows_of(skep)
        assert {row["state"] for row in during.values()} == {"ready"}
        assert during["gateway"]["slots"] == 8
        assert ask(url, model="other")[0] == 200
        configure({"replicas": 1, "extra": SLOW})
        assert sorted(reload()["removed"]) == ["fake-model-1", "fake-model-2", "other-0"]
        received = rest_of(sock, received)
    assert busy in before
    assert b"[DONE]" in received
    after = rows_of(skep)
    assert set(after) == {"fake-model-0", "gateway"}
    assert after["fake-model-0"]["pid"] == before["fake-model-0"]["pid"]
    assert refusal(url, model="other") == (404, "model_not_found")


def test_replicas_that_change_are_started_anew_after_their_answers(skep, configure, up, reload):
    """One after the other; requests that find none of them wait."""
    configure({"extra": SLOW})
    url = up()["url"]
    before = rows_of(skep)["fake-model-0"]["pid"]
    with streaming(url, max_tokens=60) as sock:
        received = sock.recv(1000)
        configure({"extra": SLOW, "slots": 3})
        assert reload()["changed"] == ["fake-model-0"]
        received = rest_of(sock, received)
    assert b"[DONE]" in received
    after = rows_of(skep)["fake-model-0"]
    assert (after["slots"], after["state"]) == (3, "ready")
    assert after["pid"] != before
    assert ask(url)[0] == 200


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


def test_shares_of_slots_and_aliases_hold_at_once_and_without_a_restart(skep, configure, up, reload):
    configure({"slots": 4})
    url = up()["url"]
    before = rows_of(skep)["fake-model-0"]["pid"]
    assert refusal(url, model="gpt-4o") == (404, "model_not_found")
    configure({"slots": 4, "reserve": 1, "soft_slots": 2}, gateway='[aliases]\n"gpt-*" = "fake-model"\n')
    assert reload()["adjusted"] == ["fake-model-0"]
    assert ask(url, model="gpt-4o")[0] == 200
    assert rows_of(skep)["fake-model-0"]["pid"] == before


def pids_of(skep):
    """Not what is busy: the gateway has yet to ask a replica that has just begun."""
    return {name: (row["pid"], row["slots"], row["state"]) for name, row in rows_of(skep).items()}


def test_a_file_with_an_error_changes_nothing_and_says_so(skep, configure, up, tmp_path):
    configure()
    url = up()["url"]
    good = (tmp_path / "skep.toml").read_text()
    before = pids_of(skep)
    for bad, complaint in [
        ("[gateway\n", "skep.toml cannot be read"),
        (good.replace("slots = 2", "slots = 0"), "`serve.0.slots`"),
        (good.replace("slots = 2", "slots = 2\nreserve = 2"), "`reserve` = 2 takes all 2 slots"),
        (good + '[aliases]\nx = "nobody"\n', "the alias `x` stands for `nobody`, which is not served"),
        (good.replace('engine = "fake"', 'engine = "steam"'), "there is no engine `steam`"),
    ]:
        (tmp_path / "skep.toml").write_text(bad)
        assert complaint in skep("reload", check=2).stderr
    (tmp_path / "skep.toml").unlink()
    assert "does not exist" in skep("reload", check=2).stderr
    assert pids_of(skep) == before
    assert ask(url)[0] == 200


def test_a_reloaded_replica_that_does_not_start_is_an_error_and_the_hive_stays(skep, configure, up, reload):
    configure()
    up()
    configure({"extra": ["--crash-at-start=no such kernel"]})
    done = skep("reload", "--wait", check=1)
    assert "error: replica `fake-model-0` did not start: no such kernel" in done.stderr
    assert rows_of(skep)["fake-model-0"]["state"] == "failed"
    configure()
    assert reload()["changed"] == ["fake-model-0"]
    assert rows_of(skep)["fake-model-0"]["state"] == "ready"


def test_an_address_is_not_changed_by_a_reload(skep, configure, up, tmp_path):
    configure()
    up()
    text = (tmp_path / "skep.toml").read_text()
    (tmp_path / "skep.toml").write_text(text.replace("port = 0", 'port = 9\nhost = "::1"\nbody_limit = "1MiB"'))
    done = skep("reload", check=0)
    assert "not applied yet: `port`; run `skep down && skep up -d`" in done.stderr
    assert "not applied yet: `host`" in done.stderr
    assert "not applied yet: `body_limit`; run `skep replica restart gateway`" in done.stderr


def test_what_the_command_line_said_goes_on_winning(skep, configure, up, reload):
    """A reload is no way to lose `--replicas 2`."""
    configure()
    up("--replicas", "2", "--slots", "3")
    configure({"slots": 1, "context": 4096})
    assert reload()["changed"] == ["fake-model-0", "fake-model-1"]
    assert rows_of(skep)["gateway"]["slots"] == 6


def test_a_reload_from_another_folder_reads_the_same_file(skep, configure, up, env, tmp_path):
    configure()
    up()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "skep.toml").write_text("nonsense")
    configure({"replicas": 2})
    command = [sys.executable, "-m", "skep", "reload", "--json"]
    done = subprocess.run(command, env=env, cwd=tmp_path / "elsewhere", capture_output=True, text=True)
    assert json.loads(done.stdout)["added"] == ["fake-model-1"]


def test_a_key_that_was_added_is_wanted_at_once_and_a_file_that_others_can_read_warned_about(
    skep, configure, up, reload, env
):
    configure()
    url = up()["url"]
    key = skep("key", "add", "agent", check=0).stdout.strip()
    assert ask(url)[0] == 200  # not before the reload
    keys_path(user_paths(env)).chmod(0o644)
    assert "warning: other users can read" in skep("reload", "--wait", check=0).stderr
    assert refusal(url) == (401, "invalid_api_key")
    assert ask(url, key=key)[0] == 200
    skep("key", "remove", "agent", check=0)
    reload()
    assert ask(url)[0] == 200  # on loopback, no key means that none is wanted


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


def test_a_drained_replica_finishes_what_it_has_and_gets_nothing_new(skep, configure, up, status):
    configure({"replicas": 2, "extra": SLOW})
    url = up()["url"]
    with streaming(url, max_tokens=100) as sock:
        received = sock.recv(1000)
        name = next(row["name"] for row in status()["rows"] if row["kind"] == "replica" and row["busy"])
        assert f"{name} gets no new requests; 1 still running" in skep("drain", name, check=0).stderr
        assert rows_of(skep)[name]["state"] == "draining"
        for _ in range(4):
            assert ask(url)[0] == 200
        assert "has none running" in skep("drain", name, "--wait", check=0).stderr
        received = rest_of(sock, received)
    assert b"[DONE]" in received
    tokens = status()["gateway"]["tokens"]
    ask(url)
    assert status()["gateway"]["tokens"].get(name) == tokens.get(name)
    skep("undrain", name, check=0)
    assert rows_of(skep)[name]["state"] == "ready"


def test_a_drained_replica_stays_drained_when_it_is_restarted(skep, configure, up):
    configure()
    url = up()["url"]
    skep("drain", "fake-model-0", check=0)
    skep("restart", "fake-model-0", check=0)
    eventually(lambda: rows_of(skep)["fake-model-0"]["restarts"] == 1)
    eventually(lambda: rows_of(skep)["fake-model-0"]["state"] == "draining")
    skep("undrain", "fake-model-0", check=0)
    assert ask(url)[0] == 200


def test_the_status_tells_what_the_gateway_sees_and_names_nobody_who_is_not_there(skep, configure, up, status):
    configure()
    ask(up()["url"])
    for command, what in {"drain": "replica or node", "undrain": "replica or node", "restart": "replica"}.items():
        said = skep(command, "nobody", check=1).stderr
        assert f"error: there is no {what} `nobody`" in said
        assert "fake-model-0" in said
    gateway = eventually(lambda: (seen := status()["gateway"]) and seen["ended"].get("answered") and seen)
    assert gateway["queues"] == {"fake-model": {"interactive": 0, "normal": 0, "batch": 0}}
    assert [(row["name"], row["state"], row["slots"]) for row in gateway["replicas"]] == [("fake-model-0", "up", 2)]


def replicas(skep):
    return {name: row["pid"] for name, row in rows_of(skep).items() if row["kind"] == "replica"}


def test_replicas_come_and_go_while_a_stream_goes_on(skep, configure, up):
    configure({"extra": SLOW})
    url = up()["url"]
    before = replicas(skep)
    with streaming(url, max_tokens=60) as sock:
        received = sock.recv(1000)
        done = skep("scale", "fake-model=3", "--wait", check=0)
        assert "started: fake-model-1, fake-model-2" in done.stderr
        assert "1 -> 3 replicas, until the next `skep replica reload` or `skep up`" in done.stderr
        during = replicas(skep)
        assert (len(during), during["fake-model-0"]) == (3, before["fake-model-0"])
        told = json.loads(skep("scale", "fake-model=1", "--wait", "--json", check=0).stdout)
        assert (told["before"], told["removed"]) == (3, ["fake-model-1", "fake-model-2"])
        received = rest_of(sock, received)
    assert b"[DONE]" in received
    assert replicas(skep) == before
    skep("scale", "fake-model=2", "--wait", check=0)
    shown = json.loads(skep("scale", "--json", check=0).stdout)
    assert shown == [{"model": "fake-model", "replicas": 2, "ready": 2}]
    skep("reload", "--wait", check=0)
    assert replicas(skep) == before, "what the file says holds again"
    for wanted, code, words in [
        ("nobody=2", 2, "skep starts no model `nobody` here"),
        ("fake-model=0", 2, "`fake-model` cannot have 0 replicas"),
        ("nobody", 2, "skep starts no model `nobody`"),
    ]:
        assert words in skep("scale", wanted, check=code).stderr
    assert replicas(skep) == before


@pytest.mark.parametrize("command", ["reload", "drain x", "undrain x", "scale m=2"])
def test_without_a_hive_there_is_nothing_to_change(paths, command):
    assert refused(*command.split(), code=1).startswith("skep is not running")


@pytest.mark.parametrize("wanted", ["m=", "=3", "m=-1", "m=1.5", "m=²"])
def test_what_is_no_model_and_number_is_refused(paths, wanted):
    assert "is not MODEL=N" in refused("scale", wanted)
    assert parse_wanted("a=b=3") == ("a=b", 3)
