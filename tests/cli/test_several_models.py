"""Several models on one machine, of which not all fit: a real hive of fake engines, over HTTP and
by the commands.
"""

import json
import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from hive_client import ask, eventually, rest_of, rows_of, streaming, write_hive
from in_process import call

from commands import environment, running_skep
from skep.paths import user_paths
from skep.supervisor.control import ask as control

HEAD = 'start_deadline = "20s"\ndrain = "10s"\nmax_loaded = 1\n'
ON_DEMAND = {"on_demand": True}


def on_demand(*extra):
    return {**ON_DEMAND, "extra": [*extra]}


class RunningHive:
    """Serves models, each with values of its own; `tell` asks over the control socket."""

    url = None

    def __init__(self, skep, folder, env):
        self.skep = skep
        self.folder = folder
        self.env = env

    def write(self, **models):
        tables = ({"model": model, **settings} for model, settings in models.items())
        write_hive(self.folder, *tables, head=HEAD)

    def start(self, **models):
        self.write(**models)
        ready = json.loads(self.skep("up", "-d", "--json", check=0).stdout)
        self.url = ready["url"]
        return ready

    def tell(self, op, **fields):
        return control(user_paths(self.env).socket, {"op": op, **fields}, timeout_s=30)

    def states(self):
        return {
            row["name"]: row["state"]
            for row in self.tell("status")["rows"]
            if row["kind"] == "replica"
        }


@pytest.fixture
def hive(skep, env, paths, tmp_path):
    return RunningHive(skep, tmp_path, env)


@pytest.fixture(scope="module")
def shared_hive(tmp_path_factory):
    """Two models on demand, started once for the tests that look at one swap of them."""
    folder = tmp_path_factory.mktemp("shared-hive")
    env = environment(folder)
    with running_skep(env, folder) as skep:
        hive = RunningHive(skep, folder, env)
        hive.ready = hive.start(a=ON_DEMAND, b=on_demand("--load-s=0.6"))
        yield hive


@pytest.fixture(scope="module")
def swap(shared_hive):
    """What was seen when a request for `b` came, while `a` was loaded and not used."""
    loaded = shared_hive.tell("load", model="a", wait=True)
    before = shared_hive.states()
    with streaming(shared_hive.url, model="b", max_tokens=3) as sock:
        answer = rest_of(sock, b"")
    return SimpleNamespace(
        loaded=loaded,
        before=before,
        answer=answer,
        after=shared_hive.states(),
        rows=rows_of(shared_hive.skep),
    )


def test_models_on_demand_are_told_at_the_start_and_not_loaded(shared_hive):
    ready = shared_hive.ready
    assert ready["models"] == ["a", "b"]
    assert {row["name"]: row["state"] for row in ready["replicas"]} == {
        "a-0": "unloaded",
        "b-0": "unloaded",
    }


def test_a_load_that_is_asked_for_brings_up_that_model_alone(swap):
    assert swap.loaded["state"] == "loaded"
    assert swap.before == {"a-0": "ready", "b-0": "unloaded"}


def test_the_first_request_loads_its_model_in_the_place_of_another(swap):
    """The other one was not used: it need not wait for a pause."""
    assert swap.after == {"a-0": "unloaded", "b-0": "ready"}
    assert swap.rows["a-0"]["pid"] is None


def test_an_answer_begins_before_its_model_is_loaded_and_says_what_it_waits_for(swap):
    assert swap.answer.startswith(b"HTTP/1.1 200")
    assert b"\n: waiting for b, 0 s\n\n" in swap.answer
    assert b"data: [DONE]" in swap.answer


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


def test_a_model_is_loaded_by_hand_where_the_one_before_was_unloaded(hive):
    hive.start(a=ON_DEMAND, b=ON_DEMAND)
    assert call("load", "a", "--json").json == {"model": "a", "state": "loaded"}
    assert "a is unloaded" in call("unload", "a").err
    assert "b is loaded" in call("load", "b").err
    assert hive.states() == {"a-0": "unloaded", "b-0": "ready"}


def test_a_model_that_is_unloaded_can_be_unloaded_again(hive):
    hive.start(a=ON_DEMAND, b=ON_DEMAND)
    hive.tell("load", model="b", wait=True)
    assert "b is unloaded" in call("unload", "b").err
    assert set(hive.states().values()) == {"unloaded"}
    assert call("unload", "b", "--json").json["state"] == "unloaded"


def test_what_cannot_be_loaded_or_restarted_by_hand_is_said(hive):
    hive.start(a=ON_DEMAND, b=ON_DEMAND)
    unknown = call("load", "nobody").error
    assert "skep starts no model `nobody`" in unknown.message
    assert unknown.hint == "known: a, b"
    assert "`a-0` is not loaded" in call("restart", "a-0").error.message


@pytest.fixture
def broken(hive):
    """A hive of which one model cannot be loaded, and the answer to the request that tried it."""
    crash = on_demand("--crash-at-start=error: no memory", "--exit-code=78")
    hive.start(a=ON_DEMAND, broken=crash)
    with streaming(hive.url, model="broken") as sock:
        return rest_of(sock, b"")


def test_a_load_that_fails_is_told_to_who_asked_and_in_the_status(hive, broken):
    assert b"no memory" in broken
    assert b'"code": "model_load_failed"' in broken
    eventually(lambda: set(hive.states().values()) == {"unloaded"})
    (row,) = [row for row in hive.tell("status")["rows"] if row["name"] == "broken-0"]
    assert "no memory" in row["why"]


@pytest.mark.usefixtures("broken")
def test_a_load_that_failed_can_be_tried_by_hand_at_once_and_brings_nothing_down(hive):
    # By hand there is no back-off.
    assert "no memory" in call("load", "broken").error.message
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
