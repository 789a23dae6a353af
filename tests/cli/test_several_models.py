"""Several models on one machine, of which not all fit: a real hive of fake engines, over HTTP and
by the commands.
"""

import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hive_client import ask, eventually, rest_of, rows_of, streaming
from in_process import call

from skep.paths import user_paths
from skep.supervisor.control import ask as control

HEAD = 'start_deadline = "20s"\ndrain = "10s"\nmax_loaded = 1\n'
ON_DEMAND = {"on_demand": True}


def on_demand(*extra):
    return {**ON_DEMAND, "extra": [*extra]}


@pytest.fixture
def hive(up, configure, env):
    """Serves models, each with values of its own, and returns the URL.

    `hive.tell` asks over the control socket.
    """

    class Running:
        url = None

        def write(self, **models):
            configure(
                *({"model": model, **settings} for model, settings in models.items()), head=HEAD
            )

        def start(self, **models):
            self.write(**models)
            ready = up()
            self.url = ready["url"]
            return ready

        def tell(self, op, **fields):
            return control(user_paths(env).socket, {"op": op, **fields}, timeout_s=30)

        def states(self):
            return {
                row["name"]: row["state"]
                for row in self.tell("status")["rows"]
                if row["kind"] == "replica"
            }

    return Running()


def test_the_first_request_loads_a_model_and_another_ones_takes_its_place(skep, hive):
    slow = on_demand("--load-s=0.6")
    ready = hive.start(a=ON_DEMAND, b=slow)
    assert ready["models"] == ["a", "b"]
    assert {row["name"]: row["state"] for row in ready["replicas"]} == {
        "a-0": "unloaded",
        "b-0": "unloaded",
    }
    # And not used: it need not wait for a pause.
    assert hive.tell("load", model="a", wait=True)["state"] == "loaded"
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
    hive.start(a=on_demand("--token-ms=10"), b=ON_DEMAND)
    with (
        streaming(hive.url, model="a", max_tokens=100) as sock,
        ThreadPoolExecutor(1) as thread_pool_executor,
    ):
        received = sock.recv(1000)
        while b"data:" not in received:
            received += sock.recv(65536)
        unloaded = thread_pool_executor.submit(hive.tell, "unload", model="a", wait=True)
        assert b"data: [DONE]" in rest_of(sock, received)
        assert unloaded.result() == {"ok": True, "model": "a", "state": "unloaded"}
    assert ask(hive.url, model="a")[0] == 200  # and comes back


@pytest.mark.slow
def test_an_agent_that_thinks_between_two_requests_keeps_its_model(hive):
    hive.start(a=ON_DEMAND, b=ON_DEMAND)
    assert ask(hive.url, model="a")[0] == 200
    with ThreadPoolExecutor(1) as thread_pool_executor:
        waiting = thread_pool_executor.submit(ask, hive.url, model="b")
        for _ in range(2):
            threading.Event().wait(2)  # it thinks
            assert hive.states() == {"a-0": "ready", "b-0": "unloaded"}
            assert ask(hive.url, model="a")[0] == 200
        assert waiting.result()[0] == 200  # when the agent has paused for longer


@pytest.mark.slow
def test_nothing_is_lost_when_two_models_are_asked_for_all_the_time(hive):
    fast = on_demand("--token-ms=1")
    hive.start(a=fast, b=fast, c=fast)

    def client(number):
        comments = []
        for turn in range(4):
            model = "abc"[(number + turn) % 3]
            if number % 2:
                comments.append(ask(hive.url, model=model)[0] == 200)
            else:
                with streaming(hive.url, model=model, max_tokens=3) as sock:
                    comments.append(b"data: [DONE]" in rest_of(sock, b""))
        return all(comments)

    with ThreadPoolExecutor(6) as crowd:
        assert all(crowd.map(client, range(6)))


def test_load_and_unload_by_hand_and_a_load_that_fails_brings_nothing_else_down(hive, paths):
    hive.start(
        a=ON_DEMAND,
        b=ON_DEMAND,
        broken=on_demand("--crash-at-start=error: no memory", "--exit-code=78"),
    )
    assert call("load", "a", "--json").json == {"model": "a", "state": "loaded"}
    assert "a is unloaded" in call("unload", "a").err
    assert "b is loaded" in call("load", "b").err
    assert hive.states() == {"a-0": "unloaded", "b-0": "ready", "broken-0": "unloaded"}
    assert "b is unloaded" in call("unload", "b").err
    assert set(hive.states().values()) == {"unloaded"}
    assert call("unload", "b", "--json").json["state"] == "unloaded"
    unknown = call("load", "nobody").error
    assert "skep starts no model `nobody`" in unknown.message
    assert unknown.hint == "known: a, b, broken"
    assert "`a-0` is not loaded" in call("restart", "a-0").error.message
    with streaming(hive.url, model="broken") as sock:
        received = rest_of(sock, b"")
    assert b"no memory" in received
    assert b'"code": "model_load_failed"' in received
    eventually(lambda: set(hive.states().values()) == {"unloaded"})
    (row,) = [row for row in hive.tell("status")["rows"] if row["name"] == "broken-0"]
    assert "no memory" in row["why"]
    assert "no memory" in call("load", "broken").error.message  # by hand there is no back-off
    assert ask(hive.url, model="a")[0] == 200


@pytest.mark.slow
def test_an_idle_model_goes_by_itself(hive):
    hive.start(a={"idle_unload": "1s"})
    assert ask(hive.url, model="a")[0] == 200
    eventually(lambda: hive.states() == {"a-0": "unloaded"})
    assert ask(hive.url, model="a")[0] == 200


@pytest.mark.slow
def test_a_gateway_that_crashes_forgets_nobody(hive):
    hive.start(a=on_demand("--load-s=0.5"))
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
    hive.write(a={**ON_DEMAND, "reserve": 1}, c=ON_DEMAND)
    document = json.loads(skep("reload", "--wait", "--json", check=0).stdout)
    assert (document["added"], document["removed"], document["adjusted"]) == (
        ["c-0"],
        ["b-0"],
        ["a-0"],
    )
    assert hive.states() == {"a-0": "ready", "c-0": "unloaded"}
    assert ask(hive.url, model="c")[0] == 200
    hive.write(a={}, c=ON_DEMAND)
    skep("reload", "--wait", check=0)
    # Not on demand any more: at once.
    eventually(lambda: hive.states() == {"a-0": "ready", "c-0": "unloaded"})


@pytest.mark.slow
def test_down_with_a_request_that_waits_leaves_nothing(skep, hive):
    hive.start(a=on_demand("--load-s=30"))
    with streaming(hive.url, model="a") as sock:
        eventually(lambda: hive.states() == {"a-0": "starting"})
        skep("down", "--wait", "0s", check=0)
        assert b"shutting_down" in rest_of(sock, b"")
    with (
        pytest.raises(OSError),
        socket.create_connection(("127.0.0.1", int(hive.url.rpartition(":")[2])), timeout=2),
    ):
        pass
