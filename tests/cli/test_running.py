"""Changing a hive while it serves: reload, drain, undrain. Real processes, and streams that must not break."""

import json
import stat
import subprocess
import sys
import urllib.error

import pytest
from talk import ask, eventually, rest_of, rows_of, streaming

from skep.config.keys import keys_path
from skep.paths import user_paths
from skep.supervisor.control import ask as ask_control
from skep.supervisor.control import socket_of

HEAD = """
start_deadline = "20s"
drain = "10s"
"""


@pytest.fixture
def configure(tmp_path):
    """Writes skep.toml: tables of [[serve]], and what stands under [gateway]."""

    def write(*tables, gateway="", rest=""):
        text = [HEAD, rest, "[gateway]\nport = 0\n", gateway]
        for table in tables:
            values = {"model": "fake-model", "engine": "fake", "slots": 2, **table}
            text += ["[[serve]]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        (tmp_path / "skep.toml").write_text("\n".join(text) + "\n")

    return write


@pytest.fixture
def up(skep):
    return lambda *args: json.loads(skep("up", "-d", "--json", *args, check=0).stdout)["url"]


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


SLOW = ["--token-ms=20"]


def test_a_reload_adds_and_removes_replicas_while_a_stream_goes_on(skep, configure, up, reload):
    configure({"replicas": 2, "extra": SLOW})
    url = up()
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
    url = up()
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
    url = up()
    with streaming(url, max_tokens=400) as sock:
        received = sock.recv(1000)
        configure({"extra": ["--load-s=0.3"]})
        skep("reload", check=0)
        assert rows_of(skep)["fake-model-0"]["state"] == "draining"
        assert "another reload is under way" in skep("reload", check=1).stderr
        assert ask(url)[0] == 200
        received = rest_of(sock, received)
    assert b"[DONE]" in received
    assert rows_of(skep)["fake-model-0"]["state"] == "ready"


def test_down_in_the_middle_of_a_reload_leaves_nothing_behind(skep, configure, up):
    configure({"extra": SLOW})
    url = up()
    with streaming(url, max_tokens=150) as sock:
        received = sock.recv(1000)
        configure({"slots": 3}, {"model": "other"})
        skep("reload", check=0)
        skep("down", check=0)
        received = rest_of(sock, received)
    assert b"[DONE]" in received
    assert json.loads(skep("ps", "--json", check=0).stdout) == []


def test_shares_of_slots_are_adjusted_without_a_restart(skep, configure, up, reload):
    configure({"slots": 4})
    up()
    before = rows_of(skep)["fake-model-0"]["pid"]
    configure({"slots": 4, "reserve": 1, "soft_slots": 2})
    assert reload()["adjusted"] == ["fake-model-0"]
    assert rows_of(skep)["fake-model-0"]["pid"] == before


def test_limits_and_aliases_hold_at_once(skep, configure, up, reload):
    configure({})
    url = up()
    assert refusal(url, model="gpt-4o") == (404, "model_not_found")
    configure({}, gateway='[aliases]\n"gpt-*" = "fake-model"\n')
    assert reload()["unchanged"] == ["fake-model-0"]
    assert ask(url, model="gpt-4o")[0] == 200


def test_a_file_with_an_error_changes_nothing_and_says_so(skep, configure, up, tmp_path):
    configure({})
    url = up()
    good = (tmp_path / "skep.toml").read_text()
    before = rows_of(skep)
    for bad, complaint in [
        ("[gateway\n", "skep.toml cannot be read"),
        (good.replace("slots = 2", "slots = 0"), "`serve.0.slots`"),
        (good.replace("slots = 2", "slots = 2\nreserve = 2"), "`reserve` 2 of 2 slots"),
        (good + '[aliases]\nx = "nobody"\n', "the alias `x` stands for `nobody`, which is not served"),
        (good.replace('engine = "fake"', 'engine = "steam"'), "there is no engine `steam`"),
    ]:
        (tmp_path / "skep.toml").write_text(bad)
        assert complaint in skep("reload", check=2).stderr
    (tmp_path / "skep.toml").unlink()
    assert "does not exist" in skep("reload", check=2).stderr
    assert rows_of(skep) == before
    assert ask(url)[0] == 200


def test_a_reloaded_replica_that_does_not_start_is_an_error_and_the_hive_stays(skep, configure, up, reload):
    configure({})
    up()
    configure({"extra": ["--crash-at-start=no such kernel"]})
    done = skep("reload", "--wait", check=1)
    assert "error: replica `fake-model-0` did not start: no such kernel" in done.stderr
    assert rows_of(skep)["fake-model-0"]["state"] == "failed"
    configure({})
    assert reload()["changed"] == ["fake-model-0"]
    assert rows_of(skep)["fake-model-0"]["state"] == "ready"


def test_an_address_is_not_changed_by_a_reload(skep, configure, up, tmp_path):
    configure({})
    up()
    text = (tmp_path / "skep.toml").read_text()
    (tmp_path / "skep.toml").write_text(text.replace("port = 0", 'port = 9\nhost = "::1"\nbody_limit = "1MiB"'))
    done = skep("reload", check=0)
    assert "not yet in force: `port`; it takes `skep down && skep up -d`" in done.stderr
    assert "not yet in force: `host`" in done.stderr
    assert "not yet in force: `body_limit`; it takes `skep restart gateway`" in done.stderr


def test_what_the_command_line_said_goes_on_winning(skep, configure, up, reload):
    """A reload is no way to lose `--replicas 2`."""
    configure({})
    up("--replicas", "2", "--slots", "3")
    configure({"slots": 1, "context": 4096})
    assert reload()["changed"] == ["fake-model-0", "fake-model-1"]
    assert rows_of(skep)["gateway"]["slots"] == 6


def test_a_reload_from_another_folder_reads_the_same_file(skep, configure, up, env, tmp_path):
    configure({})
    up()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "skep.toml").write_text("nonsense")
    configure({"replicas": 2})
    command = [sys.executable, "-m", "skep", "reload", "--json"]
    done = subprocess.run(command, env=env, cwd=tmp_path / "elsewhere", capture_output=True, text=True)
    assert json.loads(done.stdout)["added"] == ["fake-model-1"]


def test_a_key_that_was_added_is_wanted_at_once(skep, configure, up, reload):
    configure({})
    url = up()
    assert ask(url)[0] == 200
    key = skep("key", "add", "agent", check=0).stdout.strip()
    assert ask(url)[0] == 200  # not before the reload
    reload()
    assert refusal(url) == (401, "invalid_api_key")
    assert ask(url, key=key)[0] == 200
    skep("key", "remove", "agent", check=0)
    reload()
    assert ask(url)[0] == 200  # on loopback, no key is an open door


def test_keys_that_others_can_read_are_warned_about(skep, configure, env):
    configure({})
    skep("key", "add", "agent", check=0)
    keys_path(user_paths(env)).chmod(0o644)
    assert "warning: others may read" in skep("up", "-d", check=0).stderr
    assert "warning: others may read" in skep("reload", check=0).stderr


def test_without_the_last_key_nobody_comes_in_from_outside(skep, configure, reload):
    configure({})
    key = skep("key", "add", "agent", check=0).stdout.strip()
    port = json.loads(skep("up", "-d", "--json", "--host", "0.0.0.0", check=0).stdout)["url"].rpartition(":")[2]
    url = f"http://127.0.0.1:{port}"
    assert ask(url, key=key)[0] == 200
    skep("key", "remove", "agent", check=0)
    assert "no key is left: every request is refused" in reload()["warnings"][0]
    assert refusal(url, key=key) == (401, "invalid_api_key")


def test_the_key_of_the_environment_survives_a_reload_from_a_shell_without_it(skep, configure, reload):
    configure({})
    url = json.loads(skep("up", "-d", "--json", check=0, SKEP_API_KEY="secret").stdout)["url"]
    reload()
    assert refusal(url) == (401, "invalid_api_key")
    assert ask(url, key="secret")[0] == 200


def test_a_drained_replica_finishes_what_it_has_and_gets_nothing_new(skep, configure, up, status):
    configure({"replicas": 2, "extra": SLOW})
    url = up()
    with streaming(url, max_tokens=100) as sock:
        received = sock.recv(1000)
        name = next(row["name"] for row in status()["rows"] if row["kind"] == "replica" and row["busy"])
        assert f"{name} gets nothing new; 1 under way" in skep("drain", name, check=0).stderr
        assert rows_of(skep)[name]["state"] == "draining"
        for _ in range(4):
            assert ask(url)[0] == 200
        assert "is empty" in skep("drain", name, "--wait", check=0).stderr
        received = rest_of(sock, received)
    assert b"[DONE]" in received
    tokens = status()["gateway"]["tokens"]
    ask(url)
    assert status()["gateway"]["tokens"].get(name) == tokens.get(name)
    skep("undrain", name, check=0)
    assert rows_of(skep)[name]["state"] == "ready"


def test_a_drained_replica_stays_drained_when_it_is_restarted(skep, configure, up):
    configure({})
    url = up()
    skep("drain", "fake-model-0", check=0)
    skep("restart", "fake-model-0", check=0)
    eventually(lambda: rows_of(skep)["fake-model-0"]["restarts"] == 1)
    eventually(lambda: rows_of(skep)["fake-model-0"]["state"] == "draining")
    skep("undrain", "fake-model-0", check=0)
    assert ask(url)[0] == 200


@pytest.mark.parametrize("command", ["drain", "undrain", "restart"])
def test_a_replica_that_is_not_there_is_an_error_with_those_that_are(skep, configure, up, command):
    configure({})
    up()
    done = skep(command, "nobody", check=1)
    assert "error: there is no `nobody` here" in done.stderr
    assert "fake-model-0" in done.stderr


@pytest.mark.parametrize("command", [["reload"], ["drain", "x"], ["undrain", "x"]])
def test_without_a_hive_there_is_nothing_to_change(skep, command):
    assert skep(*command, check=1).stderr.startswith("error: skep is not running")


def test_the_status_tells_what_the_gateway_sees(skep, configure, up, status):
    configure({})
    url = up()
    ask(url)
    gateway = eventually(lambda: (seen := status()["gateway"]) and seen["ended"].get("answered") and seen)
    assert gateway["queues"] == {"fake-model": {"interactive": 0, "normal": 0, "batch": 0}}
    assert [(row["name"], row["state"], row["slots"]) for row in gateway["replicas"]] == [("fake-model-0", "up", 2)]


def test_what_a_hive_writes_into_its_state_folder_is_for_its_user_alone(skep, configure, up, env):
    configure({})
    ask(up())
    state = user_paths(env).state
    eventually((state / "logs" / "requests.log").exists)
    found = {path.relative_to(state): stat.S_IMODE(path.stat().st_mode) for path in [state, *state.rglob("*")]}
    names = {path.name for path in found}
    assert names > {"logs", "skep.log", "gateway.log", "requests.log", "fake-model-0.log"}
    assert {str(path): oct(mode) for path, mode in found.items() if mode & 0o077} == {}


def test_requests_leave_a_line_in_their_log(skep, configure, up):
    configure({})
    ask(up())
    skep("down", check=0)
    assert "/v1/chat/completions" in skep("logs", "requests", check=0).stdout
