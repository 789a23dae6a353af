"""Servers that skep did not start, found out about over real sockets."""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from msgspec.structs import replace
from supervised import Changes

from recorded_server import recorded
from skep.engines.base import Launch
from skep.supervisor.lifecycle import ReplicaState
from skep.supervisor.remote_replica import (
    UpstreamReplica,
    UpstreamUnavailable,
    ask_slots,
    probe_upstream,
)
from skep.testing.process import FakeEngine
from skep.wire.engine_state import LARGEST_STATE_BYTES, LONG_STATE_BYTES


def launch(url, model=""):
    return Launch("far", "remote", model, None, slots=4, context_tokens=0, threads=0, url=url)


def find(url, model=""):
    return asyncio.run(probe_upstream(launch(url, model)))


def told_by(answers, model=""):
    """What is found out about a server that knows only these paths."""
    with recorded(page=lambda path: answers.get(path, (404, b""))) as server:
        return find(server.url, model)


def models(*names):
    return json.dumps({"data": [{"id": name} for name in names]}).encode()


@pytest.mark.parametrize(
    ("metrics", "version", "facts"),
    [
        (b"vllm:num_requests_running 0\n", b'{"version": "1.2"}', ("metrics", 30, "vllm 1.2")),
        (b"sglang:num_running_reqs 0\n", b'{"version": "1.2"}', ("metrics", 30, "sglang 1.2")),
        (b"up 1\n", (404, b""), ("", 5, "remote")),
    ],
)
def test_a_server_that_counts_no_requests_gets_a_short_release_bound(metrics, version, facts):
    """One that counts them is asked by its metrics."""
    info = told_by(
        {"/v1/models": models("m"), "/slots": b"{}", "/metrics": metrics, "/version": version}
    )
    assert (info.confirms, info.release_bound_s, info.version(), info.simulated) == (
        *facts,
        False,
    )


@pytest.mark.parametrize(
    ("answers", "note"),
    [
        ({"/v1/models": models("mine", "a")}, None),
        ({"/v1/models": models("a")}, "it does not list `mine`; it lists a"),
        ({}, None),
    ],
    ids=[
        "one of several",
        "not listed: llama-server answers to any name",
        "no list: taken at its word",
    ],
)
def test_a_chosen_model_is_taken_with_a_note_where_the_server_does_not_list_it(answers, note):
    info = told_by(answers, "mine")
    assert (info.model, info.note) == ("mine", note)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((401, b""), r"it requires an API key \(HTTP 401"),
        ((503, b""), "HTTP 503"),
        ((404, b""), "HTTP 404 from /v1/models"),
        (models("b", "a"), r"it serves 2 models \(a, b\): choose one with `model`"),
        (b"<html>", "no list of models"),
        (b'{"data": []}', "serves no model"),
        (b'{"data": [1, {"id": 2}]}', "serves no model"),
    ],
)
def test_what_is_wrong_is_said(answer, why):
    with pytest.raises(UpstreamUnavailable, match=why):
        told_by({"/v1/models": answer})


@pytest.mark.parametrize(
    ("listing", "why"),
    [
        (
            b'{"data":[{"id":"m"}],"pad":"%b"}' % (b"x" * LARGEST_STATE_BYTES),
            "an answer of more than 4,194,304 bytes",
        ),
        (b'{"data":[%b{"id":"m"}]}' % (b"[]," * 1_000_000), "no list of models"),
        (b'{"data":[%b{"id":"m"}]}' % (b"1," * 1_000_000), "no list of models"),
        (b'{"data":%b%b}' % (b"[" * 1_000_000, b"]" * 1_000_000), "no list of models"),
    ],
    ids=["above the bound", "a million lists", "a million numbers", "nested"],
)
def test_a_list_of_models_that_would_hold_up_the_supervisor_is_refused(listing, why):
    """One million empty lists kept every other replica waiting for a second, again and again."""
    with pytest.raises(UpstreamUnavailable, match=why):
        told_by({"/v1/models": listing})


def test_names_of_models_without_end_are_not_repeated():
    with pytest.raises(UpstreamUnavailable, match="serves no model"):
        told_by({"/v1/models": models("m" * 100_000)})
    with pytest.raises(UpstreamUnavailable) as caught:
        told_by({"/v1/models": models("m" * 1000, "n" * 1000)})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("path", ["/slots", "/props", "/metrics"])
def test_what_a_server_says_of_itself_without_end_leaves_it_an_upstream(path):
    pages = {"/v1/models": models("m"), "/slots": b"[]", "/props": b'{"build_info":"b1"}'}
    endless = b'{"a":[%b1]}' % (b"[]," * 1_400_000)
    assert told_by({**pages, path: endless}).model == "m"


SLOTS_OF_A_GATEWAY = b"".join(
    b'skep_slots{model="%b",replica="%b"} %d\n' % row
    for row in ((b"a", b"r0", 4), (b"a", b"r1", 4), (b"b", b"r2", 2))
)


@pytest.mark.parametrize(
    ("pages", "model", "slots"),
    [
        ({"/props": b'{"total_slots": 8}'}, None, 8),
        ({"/get_server_info": b'{"max_running_requests": 48}'}, None, 48),
        ({"/metrics": SLOTS_OF_A_GATEWAY}, "a", 8),
        ({"/metrics": SLOTS_OF_A_GATEWAY}, "c", None),
        ({"/metrics": SLOTS_OF_A_GATEWAY}, None, None),
        # a number that nobody has
        ({"/props": b'{"total_slots": 1%b}' % (b"0" * 30)}, None, None),
        (
            {
                "/props": b'{"total_slots": 0}',
                "/get_server_info": b'{"max_running_requests": "many"}',
            },
            None,
            None,
        ),
        ({"/metrics": b'skep_slots{model="a"} 999999999\n'}, None, None),
    ],
)
async def test_a_server_is_asked_for_its_slots_and_believed_within_reason(pages, model, slots):
    with recorded(page=lambda path: pages.get(path, (404, b""))) as server:
        answer = await ask_slots(server.url, model=model)
    assert (answer and answer[0]) == slots


class CountingExecutor(ThreadPoolExecutor):
    """Counts what an event loop has done in threads."""

    count = 0

    def submit(self, *args, **options):
        self.count += 1
        return super().submit(*args, **options)


@pytest.mark.parametrize(("pad", "in_loop"), [(10, True), (LONG_STATE_BYTES, False)])
async def test_a_long_list_of_models_is_read_in_a_thread(pad, in_loop):
    """The supervisor's loop carries every other replica meanwhile."""
    loop = asyncio.get_running_loop()
    threads = CountingExecutor()
    loop.set_default_executor(threads)
    listing = b'{"data":[{"id":"m"}],"pad":"%b"}' % (b"x" * pad)
    with recorded(page=lambda path: listing if path == "/v1/models" else (404, b"")) as server:
        assert (await probe_upstream(launch(server.url))).model == "m"
    assert (threads.count == 0) is in_loop


async def test_a_server_that_comes_later_is_found():
    """And stays: from then on the gateway's own health checks decide."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    changes = Changes()
    upstream = UpstreamReplica(launch(f"http://127.0.0.1:{port}"), changes)
    until = changes.until
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(upstream.run())
        await until(lambda: upstream.settled)
        assert upstream.life.state is ReplicaState.STARTING
        assert "refused" in upstream.life.why
        assert upstream.model == ""
        engine = await asyncio.to_thread(FakeEngine(port=port).start)
        await until(lambda: upstream.life.serving)
        assert (upstream.model, upstream.life.why) == ("fake-model", None)
        await asyncio.to_thread(engine.close)
        await upstream.restart()
        assert not upstream.life.serving
        await until(lambda: upstream.life.why is not None)
        upstream.stop()
    assert upstream.life.state is ReplicaState.STOPPED


def test_stopping_does_not_wait_for_a_server_that_hangs():
    async def run(listener):
        upstream = UpstreamReplica(
            launch(f"http://127.0.0.1:{listener.getsockname()[1]}"), lambda: None
        )
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(upstream.run())
            connection, _ = await asyncio.to_thread(listener.accept)
            with connection:
                upstream.stop()
                await asyncio.wait_for(task, 2)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        asyncio.run(run(listener))


@pytest.fixture(scope="module")
def locked_engine():
    with FakeEngine(key="k-far") as engine:
        yield engine


@pytest.fixture
def info(locked_engine, monkeypatch):
    """What a server with a key says of itself to who has the key."""
    monkeypatch.setenv("FAR_KEY", "k-far")
    return asyncio.run(probe_upstream(replace(launch(locked_engine.url), key_env="FAR_KEY")))


def test_a_server_with_slots_is_llama_cpp(info):
    """It was asked without the key, so it was taken for one that cannot tell."""
    assert (info.confirms, info.version()) == ("slots", "llama.cpp skep-fake")
    assert info.release_bound_s == 30


def test_the_only_model_of_a_server_is_found(info):
    assert info.model == "fake-model"


def test_the_fake_engine_says_what_it_is(info):
    """Figures made on it must not pass for real ones."""
    assert info.simulated


def test_a_server_with_a_key_says_nothing_to_who_has_none(locked_engine):
    with pytest.raises(UpstreamUnavailable, match="requires an API key"):
        find(locked_engine.url)
