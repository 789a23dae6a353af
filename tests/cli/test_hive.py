"""`skep up` and its companions as a user runs them, on fake engines: real processes, real sockets,
real signals.
"""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import urllib.error
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hive_client import (
    ask,
    eventually,
    family,
    free_port,
    refusal,
    rest_of,
    rows_of,
    status_of,
    streaming,
    write_hive,
)
from in_process import refused

from commands import environment, running_skep
from forked_processes import alive
from skep.engines.base import KEY_FILE
from skep.paths import Paths, user_paths
from skep.supervisor.control import local_key

SLOW = {"extra": ["--token-ms=20"]}


@dataclass(frozen=True)
class Hive:
    skep: Callable
    paths: Paths
    ready: dict
    pids: list

    @property
    def key(self):
        return (self.paths.state / KEY_FILE).read_text().strip()


@contextlib.contextmanager
def background_hive(folder, *options):
    """Run two replicas, of which one has answered a request that is in the log."""
    env = environment(folder)
    paths = user_paths(env)
    write_hive(folder, {"replicas": 2})
    with running_skep(env, folder) as skep:
        ready = json.loads(skep("up", "-d", "--json", *options, check=0).stdout)
        hive = Hive(skep, paths, ready, family(ready["pid"]))
        assert ask(ready["url"])[0] == 200
        eventually((paths.logs / "requests.log").exists)
        yield hive


@pytest.fixture(scope="module")
def hive(tmp_path_factory):
    with background_hive(tmp_path_factory.mktemp("hive")) as running:
        yield running


@pytest.fixture(scope="module")
def stopped_hive(tmp_path_factory):
    """A hive after `skep down`."""
    with background_hive(tmp_path_factory.mktemp("stopped"), "--port", free_port()) as hive:
        assert (hive.paths.state / KEY_FILE).exists()
        hive.skep("down", check=0)
        yield hive


def test_a_hive_in_the_background_answers_as_soon_as_up_has_ended(hive):
    assert hive.ready["openai_base_url"] == f"{hive.ready['url']}/v1"
    assert ask(hive.ready["url"])[0] == 200


def test_ps_has_a_row_for_each_replica_and_one_for_the_gateway(hive):
    rows = rows_of(hive.skep)
    assert [row["kind"] for row in rows.values()] == ["replica", "replica", "gateway"]
    assert {row["state"] for row in rows.values()} == {"ready"}
    assert {"name", "kind", "state", "pid", "url", "slots", "busy"} <= set(rows["fake-model-0"])
    assert (rows["gateway"]["queued"], rows["gateway"]["slots"]) == (0, 4)


def test_a_hive_is_a_supervisor_a_gateway_and_two_processes_for_each_engine(hive):
    """Each engine has a guard."""
    assert len(hive.pids) == 6


def test_down_ends_every_process(stopped_hive):
    assert not any(alive(pid) for pid in stopped_hive.pids)
    assert json.loads(stopped_hive.skep("ps", "--json", check=0).stdout) == []


def test_down_frees_the_port(stopped_hive):
    url = stopped_hive.ready["url"]
    with pytest.raises(urllib.error.URLError):
        ask(url)
    socket.create_server(("127.0.0.1", int(url.rpartition(":")[2]))).close()


def test_kill_9_of_skep_leaves_no_engine_and_blocks_no_start(skep, configure, up, env):
    """The incident this guards against: orphaned engines that hold the card's memory."""
    configure({"replicas": 2, "extra": ["--grandchild"]})
    ready = up()
    key_file = user_paths(env).state / KEY_FILE
    key = key_file.read_text()
    pids = family(ready["pid"])
    assert len(pids) == 8  # two grandchildren too, which left their group and ignore TERM
    os.kill(ready["pid"], signal.SIGKILL)
    eventually(lambda: not any(alive(pid) for pid in pids))
    again = up()
    assert key_file.read_text() != key
    assert ask(again["url"])[0] == 200


def test_a_gateway_restart_and_down_during_a_reload_wait_for_streams(skep, configure, up):
    configure(SLOW)
    url = up()["url"]
    with streaming(url, max_tokens=100) as old:
        first = old.recv(1000)
        skep("restart", "gateway", check=0)
        first = rest_of(old, first)
    with streaming(url, max_tokens=100) as new:
        second = new.recv(1000)
        configure({"slots": 3}, {"model": "other"})
        skep("reload", check=0)
        skep("down", check=0)
        second = rest_of(new, second)
    assert b"[DONE]" in first
    assert b"[DONE]" in second
    assert json.loads(skep("ps", "--json", check=0).stdout) == []


def test_a_hive_tied_to_a_process_ends_with_it(env, configure, tmp_path, skep):
    """What `skep demo` starts: even kill -9 of the demo leaves nothing."""
    configure()
    code = """
import json, os, sys, time
from skep.config.load import load_settings
from skep.paths import user_paths
from skep.cli.hive import HIVE_PROGRAM
from skep.supervisor.hive_process import start_detached
paths = user_paths(os.environ)
read, write = os.pipe()
settings = load_settings(None, paths, {})
ready = start_detached(HIVE_PROGRAM, settings, paths, os.environ, lambda _: None, parent_fd=read)
print(ready["pid"], flush=True)
time.sleep(600)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=env, cwd=tmp_path, stdout=subprocess.PIPE
    )
    pids = family(int(process.stdout.readline()))
    assert len(pids) == 4
    process.kill()
    process.communicate()
    eventually(lambda: not any(alive(pid) for pid in pids))


def test_an_engine_that_dies_at_start_is_one_clear_line_and_nothing_is_left(skep, configure):
    configure({"extra": ["--crash-at-start=CUDA out of memory"]})
    done = skep("up", "-d", "--json", check=1)
    assert done.stdout == ""
    assert "error: replica `fake-model-0` did not start: CUDA out of memory" in done.stderr
    assert "hint: its log is" in done.stderr
    skep("ps", check=1)
    assert "CUDA out of memory" in skep("logs", "fake-model-0", "-n", "5", check=0).stdout
    assert "known: fake-model-0, gateway, requests, skep" in skep("logs", "nobody", check=2).stderr


def test_an_occupied_port_a_wrong_file_and_an_open_address_are_one_line(
    paths, configure, tmp_path
):
    configure()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        message = refused("up", "-d", "--port", port, code=1)
    assert message.startswith(
        f"port {port} on 127.0.0.1 is in use | choose another one with --port"
    )
    message = refused("up", "-d", "--host", "0.0.0.0")
    assert "0.0.0.0" in message
    assert "SKEP_API_KEY" in message
    (tmp_path / "skep.toml").write_text("[gateway]\nprot = 1\n")
    assert refused("up", "-d").startswith("skep.toml: `gateway.prot`")


def test_down_with_a_short_wait_cuts_what_is_under_way(skep, configure, up):
    configure(SLOW)
    url = up()["url"]
    with streaming(url, max_tokens=5000) as sock:
        received = sock.recv(1000)
        skep("down", "--wait", "200ms", check=0)
        received = rest_of(sock, received)
    assert b"stream_cut" in received


def test_ctrl_c_in_the_foreground_stops_everything(env, configure, tmp_path):
    configure()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(
        [sys.executable, "-m", "skep", "up", "--json"], env=env, cwd=tmp_path, **pipes
    ) as process:
        text = b""
        while not text.rstrip().endswith(b"]\n}"):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            text += line
        pids = family(json.loads(text)["pid"])
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert b"Traceback" not in process.stderr.read()
    assert not any(alive(pid) for pid in pids)


@pytest.mark.parametrize(("words", "prefix"), [(["engine"], b""), ([], b"engine | ")])
def test_following_a_log_or_all_shows_what_is_written_after(env, tmp_path, words, prefix):
    log = Path(env["XDG_STATE_HOME"]) / "skep" / "logs" / "engine.log"
    log.parent.mkdir(parents=True)
    log.write_text("before\n")
    command = [sys.executable, "-m", "skep", "logs", *words, "-f"]
    follower = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE)
    try:
        assert follower.stdout.readline() == prefix + b"before\n"
        with log.open("a") as file:
            file.write("after\n")
        assert follower.stdout.readline() == prefix + b"after\n"
        log.rename(log.with_suffix(".log.1"))
        log.write_text("rotated\n")
        assert follower.stdout.readline() == prefix + b"rotated\n"
    finally:
        follower.send_signal(signal.SIGINT)
        follower.communicate(timeout=10)
    assert follower.returncode == 0


def test_an_engine_answers_to_the_key_of_its_hive_alone(hive):
    engine = rows_of(hive.skep)["fake-model-0"]["url"]
    assert status_of(engine) == 401
    assert status_of(engine, key="another") == 401
    assert status_of(engine, key=hive.key) == 200
    assert len(hive.key) > 30


def test_what_a_hive_writes_is_for_its_user_alone(hive):
    paths = hive.paths
    modes = {
        path: stat.S_IMODE(path.stat().st_mode)
        for path in [paths.state, *paths.state.rglob("*"), paths.socket]
    }
    names = {path.name for path in modes}
    assert names > {"logs", "skep.log", "gateway.log", "requests.log", "fake-model-0.log"}
    assert {str(path): oct(mode) for path, mode in modes.items() if mode & 0o077} == {}
    assert paths.socket.parent.stat().st_mode & 0o777 == 0o700


def test_the_key_of_the_engines_is_in_no_command_line(hive):
    commands = [Path(f"/proc/{pid}/cmdline").read_text() for pid in family(hive.ready["pid"])]
    assert len(commands) == 6
    assert hive.key not in "\n".join(commands)


@pytest.mark.parametrize("words", ["ps", "ps --json", "top --once"])
def test_the_key_of_the_engines_is_not_shown(hive, words):
    assert hive.key not in hive.skep(*words.split(), check=0).stdout


def test_the_key_of_the_engines_is_in_no_log_and_not_in_the_words_of_up(hive):
    logs = [path.read_text() for path in hive.paths.logs.iterdir()]
    assert hive.key not in "\n".join([*logs, json.dumps(hive.ready)])


def test_down_removes_the_key_of_the_engines(stopped_hive):
    assert not (stopped_hive.paths.state / KEY_FILE).exists()


def test_the_logs_of_requests_and_of_all_are_shown_after_down(stopped_hive):
    skep = stopped_hive.skep
    assert "/v1/chat/completions" in skep("logs", "requests", check=0).stdout
    assert "fake-model-0 | " in skep("logs", check=0).stdout


def test_the_log_of_skep_tells_what_happened(stopped_hive):
    log = stopped_hive.skep("logs", "skep", check=0).stdout
    assert "replica.ready name=fake-model-0 pid=" in log
    assert "gateway.stopping" in log
    assert "Traceback" not in log


def test_the_systemd_unit_names_this_skep(skep):
    unit = skep("service", check=0).stdout
    assert "KillMode=mixed" in unit
    command = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    assert command.endswith("skep up")


def test_without_the_last_key_nobody_comes_in_from_outside(skep, configure, up, reload):
    configure()
    key = skep("key", "add", "agent", check=0).stdout.strip()
    port = up("--host", "0.0.0.0")["url"].rpartition(":")[2]
    url = f"http://127.0.0.1:{port}"
    assert ask(url, key=key)[0] == 200
    skep("key", "remove", "agent", check=0)
    assert "no key is left: every request is refused" in reload()["warnings"][0]
    assert refusal(url, key=key) == (401, "invalid_api_key")


def test_what_the_command_line_and_its_environment_said_goes_on_winning(
    skep, configure, up, reload
):
    """A reload, from a shell without the key too, is no way to lose it or `--replicas 2`."""
    configure()
    url = up("--replicas", "2", "--slots", "3", SKEP_API_KEY="secret")["url"]
    configure({"slots": 1, "context": 4096})
    assert reload()["changed"] == ["fake-model-0", "fake-model-1"]
    assert rows_of(skep)["gateway"]["slots"] == 6
    assert refusal(url) == (401, "invalid_api_key")
    assert ask(url, key="secret")[0] == 200


def test_without_a_hive_nothing_changes_and_the_gateways_key_is_sent_here_only(
    paths, env, tmp_path
):
    for command in (
        "reload",
        "drain x",
        "undrain x",
        "scale m=2",
        "load a",
        "ps",
        "down",
        "restart gateway",
    ):
        assert (
            refused(*command.split(), code=1) == "skep is not running | start it with `skep up -d`"
        ), command
    for argument in ("m=", "=3", "m=-1", "m=1.5", "m=²"):
        assert "is not MODEL=N" in refused("scale", argument)
    with_key = {**env, "SKEP_API_KEY": "of-the-gateway"}
    paths = user_paths(env)
    assert local_key("http://localhost:8400/v1", with_key, paths) == "of-the-gateway"
    assert local_key("http://10.1.2.3:8400", with_key, paths) is None
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
    message = refused("up", "-d")
    assert "--api-key" in message
    assert "another" not in message
