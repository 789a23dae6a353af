"""Several models on one machine, of which not all fit: a real hive of fake engines, over HTTP and by the commands."""

import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import typer
from talk import ask, eventually, rest_of, rows_of, streaming
from typer.testing import CliRunner

from skep.cli import control as loading
from skep.errors import SkepError
from skep.paths import user_paths
from skep.supervisor.control import ask as control

SETTINGS = """
start_deadline = "20s"
drain = "10s"
max_loaded = 1
[gateway]
port = 0
"""
SERVE = """
[[serve]]
model = "{model}"
engine = "fake"
slots = 2
{more}
"""


@pytest.fixture
def hive(skep, env, tmp_path):
    """Serves models, each with lines of its own, and returns the URL. `hive.tell` asks over the control socket."""

    class Running:
        url = None

        def write(self, **models):
            tables = [SERVE.format(model=model, more=more) for model, more in models.items()]
            (tmp_path / "skep.toml").write_text(SETTINGS + "".join(tables))

        def start(self, **models):
            self.write(**models)
            ready = json.loads(skep("up", "-d", "--json", check=0).stdout)
            self.url = ready["url"]
            return ready

        def tell(self, op, **fields):
            return control(user_paths(env).socket, {"op": op, **fields}, timeout_s=30)

        def states(self):
            return {row["name"]: row["state"] for row in self.tell("status")["rows"] if row["kind"] == "replica"}

    return Running()


@pytest.fixture
def commands(env, monkeypatch):
    """`skep load` and its like, in this process."""
    app = typer.Typer()
    loading.register_model_commands(app)
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, env[name])
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return lambda *args: CliRunner().invoke(app, list(args))


ON_DEMAND = "on_demand = true\n"


def test_the_first_request_loads_a_model_and_another_ones_takes_its_place(skep, hive):
    slow = ON_DEMAND + 'extra = ["--load-s=0.6"]\n'
    ready = hive.start(a=ON_DEMAND, b=slow)
    assert ready["models"] == ["a", "b"]
    assert {row["name"]: row["state"] for row in ready["replicas"]} == {"a-0": "unloaded", "b-0": "unloaded"}
    assert hive.tell("load", model="a", wait=True)["state"] == "loaded"  # and not used: it need not wait for a pause
    assert hive.states() == {"a-0": "ready", "b-0": "unloaded"}
    with streaming(hive.url, model="b", max_tokens=3) as sock:
        received = rest_of(sock, b"")
    assert received.startswith(b"HTTP/1.1 200")
    assert b"\n: waiting for b, 0 s\n\n" in received
    assert b"data: [DONE]" in received
    assert hive.states() == {"a-0": "unloaded", "b-0": "ready"}
    assert rows_of(skep)["a-0"]["pid"] is None


@pytest.mark.slow
def test_an_answer_under_way_is_finished_before_its_model_goes(hive):
    hive.start(a=ON_DEMAND + 'extra = ["--token-ms=10"]\n', b=ON_DEMAND)
    with streaming(hive.url, model="a", max_tokens=100) as sock, ThreadPoolExecutor(1) as other:
        received = sock.recv(1000)
        while b"data:" not in received:
            received += sock.recv(65536)
        swapped = other.submit(hive.tell, "swap", **{"out": "a", "in": "b", "wait": True})
        assert b"data: [DONE]" in rest_of(sock, received)
        assert swapped.result() == {"ok": True, "model": "b", "state": "loaded", "out": "a"}
    assert ask(hive.url, model="a")[0] == 200  # and comes back


@pytest.mark.slow
def test_an_agent_that_thinks_between_two_requests_keeps_its_model(hive):
    hive.start(a=ON_DEMAND, b=ON_DEMAND)
    assert ask(hive.url, model="a")[0] == 200
    with ThreadPoolExecutor(1) as other:
        waiting = other.submit(ask, hive.url, model="b")
        for _ in range(2):
            threading.Event().wait(2)  # it thinks
            assert hive.states() == {"a-0": "ready", "b-0": "unloaded"}
            assert ask(hive.url, model="a")[0] == 200
        assert waiting.result()[0] == 200  # when the agent has paused for longer


@pytest.mark.slow
def test_nothing_is_lost_when_two_models_are_asked_for_all_the_time(hive):
    fast = ON_DEMAND + 'extra = ["--token-ms=1"]\n'
    hive.start(a=fast, b=fast, c=fast)

    def client(number):
        said = []
        for turn in range(4):
            model = "abc"[(number + turn) % 3]
            if number % 2:
                said.append(ask(hive.url, model=model)[0] == 200)
            else:
                with streaming(hive.url, model=model, max_tokens=3) as sock:
                    said.append(b"data: [DONE]" in rest_of(sock, b""))
        return all(said)

    with ThreadPoolExecutor(6) as crowd:
        assert all(crowd.map(client, range(6)))


def test_load_unload_and_swap_by_hand(hive, commands):
    hive.start(a=ON_DEMAND, b=ON_DEMAND)
    loaded = commands("load", "a", "--json")
    assert json.loads(loaded.stdout) == {"model": "a", "state": "loaded"}
    assert "a makes room, b is loaded" in commands("swap", "a", "b").stderr
    assert hive.states() == {"a-0": "unloaded", "b-0": "ready"}
    assert "b is unloaded" in commands("unload", "b", "--drain", "5s").stderr
    assert hive.states() == {"a-0": "unloaded", "b-0": "unloaded"}
    assert json.loads(commands("unload", "b", "--json").stdout)["state"] == "unloaded"
    unknown = commands("load", "nobody")
    assert isinstance(unknown.exception, SkepError)
    assert "there is no model `nobody`" in str(unknown.exception)
    assert unknown.exception.hint == "known: a, b"
    assert "cannot be swapped for itself" in str(commands("swap", "a", "a").exception)
    with pytest.raises(SkepError, match="`a-0` is not loaded"):
        hive.tell("restart", name="a-0")


def test_commands_without_a_hive_say_that_there_is_none(commands):
    assert "skep is not running" in str(commands("load", "a").exception)
    assert "is not a duration" in str(commands("unload", "a", "--drain", "soon").exception)


@pytest.mark.slow
def test_an_answer_that_takes_too_long_does_not_hold_up_an_unload_for_ever(hive):
    hive.start(a=ON_DEMAND + 'extra = ["--token-ms=50"]\n')
    with streaming(hive.url, model="a", max_tokens=5000) as sock:
        received = b""
        while b"data:" not in received:
            received += sock.recv(65536)
        assert hive.tell("unload", model="a", wait=True, drain_s=0.3)["state"] == "unloaded"
        assert b'"code": "stream_cut"' in rest_of(sock, received)


@pytest.mark.slow
def test_an_idle_model_goes_by_itself(hive):
    hive.start(a='idle_unload = "1s"\n')
    assert ask(hive.url, model="a")[0] == 200
    eventually(lambda: hive.states() == {"a-0": "unloaded"})
    assert ask(hive.url, model="a")[0] == 200


def test_a_load_that_fails_is_told_and_brings_nothing_else_down(hive, commands):
    hive.start(a=ON_DEMAND, broken=ON_DEMAND + 'extra = ["--crash-at-start=error: no memory", "--exit-code=78"]\n')
    with streaming(hive.url, model="broken") as sock:
        received = rest_of(sock, b"")
    assert b"no memory" in received
    assert b'"code": "model_load_failed"' in received
    eventually(lambda: hive.states() == {"a-0": "unloaded", "broken-0": "unloaded"})
    (row,) = [row for row in hive.tell("status")["rows"] if row["name"] == "broken-0"]
    assert "no memory" in row["why"]
    assert "no memory" in str(commands("load", "broken").exception)  # by hand there is no back-off
    assert ask(hive.url, model="a")[0] == 200


@pytest.mark.slow
def test_a_gateway_that_crashes_forgets_nobody(hive):
    hive.start(a=ON_DEMAND + 'extra = ["--load-s=0.5"]\n')
    answers = []
    waiting = threading.Thread(target=lambda: answers.append(outcome(hive.url)))
    waiting.start()
    eventually(lambda: hive.states() != {"a-0": "unloaded"})
    gateway = next(row["pid"] for row in hive.tell("status")["rows"] if row["kind"] == "gateway")
    os.kill(gateway, signal.SIGKILL)
    waiting.join()
    assert answers == ["cut"]  # its connection died with the gateway
    assert ask(hive.url, model="a")[0] == 200


def outcome(url):
    try:
        return ask(url, model="a")[0]
    except OSError:
        return "cut"


@pytest.mark.slow
def test_a_reload_knows_the_dormant(skep, hive):
    hive.start(a=ON_DEMAND, b=ON_DEMAND)
    assert ask(hive.url, model="a")[0] == 200
    hive.write(a=ON_DEMAND + "reserve = 1\n", c=ON_DEMAND)
    told = json.loads(skep("reload", "--wait", "--json", check=0).stdout)
    assert (told["added"], told["removed"], told["adjusted"]) == (["c-0"], ["b-0"], ["a-0"])
    assert hive.states() == {"a-0": "ready", "c-0": "unloaded"}
    assert ask(hive.url, model="c")[0] == 200
    hive.write(a="", c=ON_DEMAND)
    skep("reload", "--wait", check=0)
    eventually(lambda: hive.states() == {"a-0": "ready", "c-0": "unloaded"})  # not on demand any more: at once


@pytest.mark.slow
def test_down_with_a_request_that_waits_leaves_nothing(skep, hive):
    hive.start(a=ON_DEMAND + 'extra = ["--load-s=30"]\n')
    with streaming(hive.url, model="a") as sock:
        eventually(lambda: hive.states() == {"a-0": "starting"})
        skep("down", "--wait", "0s", check=0)
        assert b"shutting_down" in rest_of(sock, b"")
    with pytest.raises(OSError), socket.create_connection(("127.0.0.1", int(hive.url.rpartition(":")[2])), timeout=2):
        pass
