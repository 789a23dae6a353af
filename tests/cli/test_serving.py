"""`skep up` and its companions as a user runs them, on fake engines: real processes, real sockets, real signals."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.error
from pathlib import Path

import pytest
from talk import ask, eventually, rest_of, rows_of, streaming

FAKE = """
start_deadline = "20s"
drain = "10s"
[gateway]
port = 0
[[serve]]
model = "fake-model"
engine = "fake"
replicas = {replicas}
slots = 2
extra = {extra}
"""


@pytest.fixture
def configure(tmp_path):
    def write(*extra, replicas=1):
        (tmp_path / "skep.toml").write_text(FAKE.format(replicas=replicas, extra=json.dumps(list(extra))))

    return write


def alive(pid):
    with contextlib.suppress(FileNotFoundError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def family(pid):
    """The process and everything below it."""
    from skep.supervisor.process_guard import descendants

    return [pid, *descendants(pid)]


def test_up_in_the_background_answers_when_it_is_ready_and_down_leaves_nothing(skep, configure):
    configure(replicas=2)
    ready = json.loads(skep("up", "-d", "--json", check=0).stdout)
    assert ready["openai_base_url"] == f"{ready['url']}/v1"
    assert ask(ready["url"])[0] == 200
    rows = rows_of(skep)
    assert [row["kind"] for row in rows.values()] == ["replica", "replica", "gateway"]
    assert {row["state"] for row in rows.values()} == {"ready"}
    assert {"name", "kind", "state", "pid", "url", "slots", "busy"} <= set(rows["fake-model-0"])
    assert (rows["gateway"]["queued"], rows["gateway"]["slots"]) == (0, 4)
    pids = family(ready["pid"])
    assert len(pids) == 6  # supervisor, gateway, two keepers, two engines
    skep("down", check=0)
    assert not any(alive(pid) for pid in pids)
    assert json.loads(skep("ps", "--json", check=0).stdout) == []


def test_kill_9_of_skep_leaves_no_engine_and_blocks_no_start(skep, configure):
    """The incident this guards against: orphaned engines that hold the card's memory."""
    configure("--grandchild", replicas=2)
    ready = json.loads(skep("up", "-d", "--json", check=0).stdout)
    pids = family(ready["pid"])
    assert len(pids) == 8  # two grandchildren too, which left their group and ignore TERM
    os.kill(ready["pid"], signal.SIGKILL)
    eventually(lambda: not any(alive(pid) for pid in pids))
    again = json.loads(skep("up", "-d", "--json", check=0).stdout)
    assert ask(again["url"])[0] == 200


def test_a_gateway_that_crashes_comes_back_and_the_engines_stay(skep, configure):
    configure()
    url = json.loads(skep("up", "-d", "--json", check=0).stdout)["url"]
    before = rows_of(skep)
    os.kill(before["gateway"]["pid"], signal.SIGKILL)
    assert ask(url)[0] == 200  # the socket is the supervisor's: the connection waits, it is not refused
    after = rows_of(skep)
    assert after["fake-model-0"]["pid"] == before["fake-model-0"]["pid"]
    assert after["gateway"]["pid"] != before["gateway"]["pid"]
    assert after["gateway"]["restarts"] == 1


def test_a_replaced_gateway_finishes_its_streams(skep, configure):
    configure("--token-ms=20")
    url = json.loads(skep("up", "-d", "--json", check=0).stdout)["url"]
    with streaming(url, max_tokens=60) as sock:
        received = sock.recv(1000)
        skep("restart", "gateway", check=0)
        received = rest_of(sock, received)
    assert b"[DONE]" in received
    assert ask(url)[0] == 200


def test_two_replacements_at_once_leave_one_gateway(skep, configure, env, tmp_path):
    configure()
    ready = json.loads(skep("up", "-d", "--json", check=0).stdout)
    command = [sys.executable, "-m", "skep", "restart", "gateway"]
    both = [subprocess.Popen(command, env=env, cwd=tmp_path, stderr=subprocess.DEVNULL) for _ in range(2)]
    assert [process.wait(30) for process in both] == [0, 0]
    eventually(lambda: len(family(ready["pid"])) == 4)
    assert ask(ready["url"])[0] == 200


@pytest.mark.parametrize("replaced", [False, True])
def test_down_waits_for_streams_in_a_replaced_gateway_too(skep, configure, replaced):
    configure("--token-ms=20")
    url = json.loads(skep("up", "-d", "--json", check=0).stdout)["url"]
    with streaming(url, max_tokens=100) as sock:
        received = sock.recv(1000)
        if replaced:
            skep("restart", "gateway", check=0)
        skep("down", check=0)
        received = rest_of(sock, received)
    assert b"[DONE]" in received


def test_an_engine_that_dies_in_silence_is_reported_by_its_exit_code(skep, configure):
    configure("--crash-at-start=")
    assert "did not start: exit code" in skep("up", "-d", check=1).stderr


def test_a_restarted_replica_finishes_its_answers_first(skep, configure):
    configure("--token-ms=20")
    url = json.loads(skep("up", "-d", "--json", check=0).stdout)["url"]
    before = rows_of(skep)["fake-model-0"]["pid"]
    with streaming(url, max_tokens=40) as sock:
        received = sock.recv(1000)
        skep("restart", "fake-model-0", check=0)
        received = rest_of(sock, received)
    assert b"[DONE]" in received
    assert ask(url)[0] == 200
    assert rows_of(skep)["fake-model-0"]["pid"] != before


def test_a_replica_that_is_being_restarted_gets_nothing_new(skep, configure):
    """It takes its time to end: what comes meanwhile waits for its successor."""
    configure("--token-ms=20", "--ignore-term")
    url = json.loads(skep("up", "-d", "--json", check=0).stdout)["url"]
    skep("restart", "fake-model-0", check=0)
    with streaming(url, max_tokens=200) as sock:
        received = sock.recv(1000)
        received = rest_of(sock, received)
    assert b"[DONE]" in received
    assert b"stream_cut" not in received


def test_a_hive_tied_to_a_process_ends_with_it(env, configure, tmp_path, skep):
    """What `skep demo` starts: even kill -9 of the demo leaves nothing."""
    configure()
    code = """
import json, os, sys, time
from skep.cli.hive import start_detached
from skep.config.load import load_settings
from skep.paths import user_paths
paths = user_paths(os.environ)
read, write = os.pipe()
ready = start_detached(load_settings(None, paths, {}), paths, dict(os.environ), parent_fd=read)
print(ready["pid"], flush=True)
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", code], env=env, cwd=tmp_path, stdout=subprocess.PIPE)
    pids = family(int(process.stdout.readline()))
    assert len(pids) == 4
    process.kill()
    process.communicate()
    eventually(lambda: not any(alive(pid) for pid in pids))


def test_the_log_of_skep_itself_tells_what_happened_when(skep, configure):
    configure()
    skep("up", "-d", check=0)
    skep("down", check=0)
    lines = skep("logs", "skep", check=0).stdout
    assert "replica.ready name=fake-model-0 pid=" in lines
    assert "gateway.stopping" in lines
    assert "Traceback" not in lines


def test_the_running_skep_is_found_from_a_shell_with_another_runtime_folder(skep, configure, tmp_path):
    """cron and sudo have no XDG_RUNTIME_DIR."""
    configure()
    (tmp_path / "run").mkdir(mode=0o700)
    skep("up", "-d", check=0, XDG_RUNTIME_DIR=str(tmp_path / "run"))
    assert rows_of(skep)["gateway"]["state"] == "ready"
    assert "already running" in skep("up", "-d", check=1).stderr


def test_a_crashed_engine_is_restarted_and_its_clients_wait(skep, configure):
    configure()
    url = json.loads(skep("up", "-d", "--json", check=0).stdout)["url"]
    before = rows_of(skep)["fake-model-0"]
    os.kill(before["pid"], signal.SIGKILL)
    eventually(lambda: rows_of(skep)["fake-model-0"]["pid"] != before["pid"])
    assert ask(url)[0] == 200
    after = rows_of(skep)["fake-model-0"]
    assert after["pid"] != before["pid"]
    assert after["restarts"] == 1


def test_an_engine_that_dies_at_start_is_one_clear_line_and_nothing_is_left(skep, configure):
    configure("--crash-at-start=CUDA out of memory")
    done = skep("up", "-d", "--json", check=1)
    assert done.stdout == ""
    assert "error: replica `fake-model-0` did not start: CUDA out of memory" in done.stderr
    assert "hint: its log is" in done.stderr
    skep("ps", check=1)


def test_an_engine_that_is_never_healthy_is_given_up_with_that_reason(skep, configure, tmp_path):
    configure("--load-s=600")
    text = (tmp_path / "skep.toml").read_text().replace('start_deadline = "20s"', 'start_deadline = "300ms"')
    (tmp_path / "skep.toml").write_text(text)
    done = skep("up", "-d", check=1)
    assert "not healthy within 0.3 s" in done.stderr


def test_a_second_up_says_that_one_is_running(skep, configure):
    configure()
    skep("up", "-d", check=0)
    done = skep("up", "-d", check=1)
    assert "error: skep is already running (pid " in done.stderr
    assert "skep down" in done.stderr


def test_an_occupied_port_is_named_and_nothing_is_started(skep, configure):
    configure()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = skep("up", "-d", "--port", port, check=1)
    assert f"error: port {port} on 127.0.0.1 is in use" in done.stderr
    assert "hint: choose another one with --port" in done.stderr


def test_binding_to_the_world_wants_a_key(skep, configure):
    configure()
    done = skep("up", "-d", "--host", "0.0.0.0", check=2)
    assert "0.0.0.0" in done.stderr
    assert "SKEP_API_KEY" in done.stderr


def test_down_with_a_short_wait_cuts_what_is_under_way(skep, configure):
    configure("--token-ms=20")
    url = json.loads(skep("up", "-d", "--json", check=0).stdout)["url"]
    with streaming(url, max_tokens=5000) as sock:
        received = sock.recv(1000)
        skep("down", "--wait", "200ms", check=0)
        received = rest_of(sock, received)
    assert b"stream_cut" in received


def test_ctrl_c_in_the_foreground_stops_everything(env, configure, tmp_path):
    configure()
    with subprocess.Popen(
        [sys.executable, "-m", "skep", "up", "--json"],
        env=env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
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


def test_logs_shows_the_end_of_an_engines_output(skep, configure):
    configure("--crash-at-start=boom at layer 7")
    skep("up", "-d", check=1)
    assert "boom at layer 7" in skep("logs", "fake-model-0", "-n", "5", check=0).stdout
    done = skep("logs", "nobody", check=2)
    assert "known: fake-model-0, gateway, skep" in done.stderr


def test_following_a_log_shows_what_is_written_after(env, tmp_path):
    log = Path(env["XDG_STATE_HOME"]) / "skep" / "logs" / "engine.log"
    log.parent.mkdir(parents=True)
    log.write_text("before\n")
    command = [sys.executable, "-m", "skep", "logs", "engine", "-f"]
    follower = subprocess.Popen(command, env=env, cwd=tmp_path, stdout=subprocess.PIPE)
    try:
        assert follower.stdout.readline() == b"before\n"
        with log.open("a") as file:
            file.write("after\n")
        assert follower.stdout.readline() == b"after\n"
        log.rename(log.with_suffix(".log.1"))
        log.write_text("rotated\n")
        assert follower.stdout.readline() == b"rotated\n"
    finally:
        follower.send_signal(signal.SIGINT)
        follower.communicate(timeout=10)
    assert follower.returncode == 0


def test_the_control_socket_is_private(skep, configure, env):
    configure()
    skep("up", "-d", check=0)
    from skep.paths import user_paths

    path = user_paths(env).socket
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_wrong_configuration_is_one_line(skep, tmp_path):
    (tmp_path / "skep.toml").write_text("[gateway]\nprot = 1\n")
    done = skep("up", "-d", check=2)
    assert done.stderr.startswith("error: skep.toml: `gateway.prot`")


@pytest.mark.parametrize("command", [["ps"], ["down"], ["restart", "gateway"]])
def test_commands_without_a_hive_say_how_to_start_one(skep, command):
    done = skep(*command, check=1)
    assert done.stderr == "error: skep is not running\nhint: start it with `skep up -d`\n"


def test_the_systemd_unit_names_this_skep(skep):
    unit = skep("service", check=0).stdout
    assert "KillMode=mixed" in unit
    command = next(line for line in unit.splitlines() if line.startswith("ExecStart="))
    assert command.endswith("skep up")


def test_a_port_is_free_again_after_down(skep, configure):
    configure()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for _ in range(2):
        skep("up", "-d", "--port", port, check=0)
        assert ask(f"http://127.0.0.1:{port}")[0] == 200
        skep("down", check=0)
    with pytest.raises(urllib.error.URLError):
        ask(f"http://127.0.0.1:{port}")
