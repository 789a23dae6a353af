"""The server as a child that the official client starts and speaks with, in front of a gateway with a fake engine."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager, contextmanager

import pytest
from mcp.client.stdio import stdio_client

from mcp import Client, StdioServerParameters
from skep.mcp_server.place import Place
from skep.mcp_server.server import make_server
from skep.places import user_paths
from skep.store.database import open_store
from skep.store.swarm import SwarmStore
from skep.tasks import Outcome
from skep.testing.process import FakeEngine


@asynccontextmanager
async def speaking(env, folder, url):
    """Starts `skep mcp` in an empty folder and speaks with it; it has to end by itself when it is left."""
    noting = ["-c", '"$@"; echo $? > code', "sh", sys.executable]  # no note where it had to be killed
    argv = [*noting, "-m", "skep", "mcp", "--url", url]
    with (folder / "stderr").open("a") as stderr:
        asked = StdioServerParameters(command="/bin/sh", args=argv, env=env, cwd=folder)
        async with Client(stdio_client(asked, errlog=stderr)) as client:
            yield client
    assert "Traceback" not in (folder / "stderr").read_text()
    assert (folder / "code").read_text() == "0\n"


async def ask(client, tool, progress_callback=None, **arguments):
    answer = await client.call_tool(tool, arguments, progress_callback=progress_callback)
    assert not answer.is_error, answer.content
    return answer.structured_content


async def wait(client, run, **heard):
    """As an orchestrator does: again and again."""
    for _ in range(60):
        standing = await ask(client, "swarm_wait", run=run, seconds=10, **heard)
        if standing["state"] not in ("starting", "running"):
            return standing
    raise AssertionError(standing)


@pytest.fixture
def door(gateway):
    with FakeEngine(slots=4, token_ms=12) as engine:
        made = gateway()
        made.serve(engine, slots=4)
        yield made


LONG = [{"id": "short", "prompt": "x", "max_tokens": 2}, *({"prompt": f"{n}", "max_tokens": 3000} for n in range(3))]


def test_tasks_are_dispatched_waited_for_and_fetched_and_a_run_outlives_its_client(door, env, tmp_path):
    """Twelve to their end; then some long ones, which the next client finds at work, and cancels."""
    heard = []

    async def listen(progress, total, message):
        heard.append((progress, total, message))

    async def first():
        async with speaking(env, tmp_path, door.url) as client:
            (model,) = (await ask(client, "capacity"))["models"]
            assert (model["model"], model["slots"]) == ("fake-model", 4)
            tasks = [{"id": f"file-{n}", "text": f"number {n}"} for n in range(12)]
            asked = {"tasks": tasks, "template": "Say {text}", "max_tokens": 30, "name": "twelve"}
            sent = await ask(client, "swarm_dispatch", **asked)
            assert (sent["tasks"], sent["at_once"], sent["model"]) == (12, 4, "fake-model")
            standing = await wait(client, sent["run"], progress_callback=listen)
            pages = [await ask(client, "swarm_results", run=sent["run"], page=page, page_size=5) for page in (1, 2, 3)]
            whole = await ask(client, "swarm_result", run=sent["run"], task="file-7")
            long = await ask(client, "swarm_dispatch", tasks=LONG)
            while not (await ask(client, "swarm_wait", run=long["run"], seconds=0))["done"]:
                await asyncio.sleep(0.05)
        return standing, pages, whole, long["run"]

    async def second(run):
        async with Client(make_server(Place(user_paths(env), env))) as client:
            assert (await ask(client, "swarm_list"))["runs"][0]["state"] == "running"
            cancelled = await ask(client, "swarm_cancel", run=run)
            return cancelled, await ask(client, "swarm_results", run=run)

    standing, pages, whole, run = asyncio.run(first())
    assert (standing["state"], standing["done"], standing["failed"], standing["left"]) == ("done", 12, 0, 0)
    assert standing["name"] == "twelve"
    assert standing["tok_s"] > 0
    rows = [row for page in pages for row in page["results"]]
    assert [row["id"] for row in rows] == [f"file-{n}" for n in range(12)]
    assert all(row["ok"] and row["answer"] for row in rows)
    assert [page.get("next_page") for page in pages] == [2, 3, None]
    assert (whole["id"], whole["ok"], whole["tries"]) == ("file-7", True, 1)
    assert heard
    assert all(total == 12 and "of 12 done" in message for _, total, message in heard)
    assert [progress for progress, _, _ in heard] == sorted({progress for progress, _, _ in heard})

    cancelled, kept = asyncio.run(second(run))
    assert (cancelled["state"], cancelled["done"], cancelled["left"]) == ("cancelled", 1, 3)
    assert [row["id"] for row in kept["results"]] == ["short"]


@pytest.mark.slow
def test_a_cancelled_run_is_resumed_and_nothing_is_done_twice(door, env):
    async def story():
        async with Client(make_server(Place(user_paths(env), env, url=door.url))) as client:
            sent = await ask(client, "swarm_dispatch", tasks=[f"task {n}" for n in range(100)], max_tokens=20)
            while not (await ask(client, "swarm_wait", run=sent["run"], seconds=0))["done"]:
                await asyncio.sleep(0.05)
            cancelled = await ask(client, "swarm_cancel", run=sent["run"])
            assert (await ask(client, "swarm_resume", run=sent["run"]))["state"] in ("starting", "running", "done")
            return cancelled, await wait(client, sent["run"])

    cancelled, standing = asyncio.run(story())
    assert cancelled["state"] == "cancelled"
    assert 0 < cancelled["done"] < 100
    assert (standing["state"], standing["done"]) == ("done", 100)
    with open_store(user_paths(env).store, read_only=True) as store:
        attempts = SwarmStore(store).attempts(standing["run"])
    done = [attempt.task for attempt in attempts if attempt.outcome is Outcome.DONE]
    assert sorted(done) == sorted(set(done))


HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}},
}  # fmt: skip


@contextmanager
def greeted(env, folder):
    """A child that has answered, and has been sent a broken line since."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    argv = [sys.executable, "-m", "skep", "mcp"]
    with subprocess.Popen(argv, env=env, cwd=folder, **pipes) as process:
        process.stdin.write(json.dumps(HELLO).encode() + b"\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["result"]["serverInfo"]["name"] == "skep"
        process.stdin.write(b"{broken\n")
        process.stdin.flush()
        yield process
        assert process.wait(5) == 0
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.slow
def test_it_ends_with_its_input_and_writes_nothing_but_protocol(env, tmp_path):
    with greeted(env, tmp_path) as process:
        process.stdin.close()
        for line in process.stdout.read().splitlines():
            assert json.loads(line)["jsonrpc"] == "2.0"


@pytest.mark.slow
def test_a_signal_ends_it_though_its_input_is_open(env, tmp_path):
    with greeted(env, tmp_path) as process:
        os.kill(process.pid, signal.SIGTERM)
