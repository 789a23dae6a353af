"""The server as a child that the official client starts and speaks with, in front of a gateway
with a fake engine.
"""

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from commands import environment
from skep.paths import user_paths
from skep.store.database import open_store
from skep.store.records import Request
from skep.testing.process import FakeEngine, GatewayProcess


@asynccontextmanager
async def speaking(env, folder, url):
    """Starts `skep mcp` in an empty folder and speaks with it; it has to end by itself when it is
    left.
    """
    from mcp.client.stdio import stdio_client

    from mcp import Client, StdioServerParameters

    # No note where it had to be killed.
    noting = [
        "-c",
        '"$@"; echo $? > code',
        "sh",
        sys.executable,
    ]
    argv = [*noting, "-m", "skep", "mcp", "--url", url]
    with (folder / "stderr").open("a") as stderr:
        stdio_server_parameters = StdioServerParameters(
            command="/bin/sh", args=argv, env=env, cwd=folder
        )
        async with Client(stdio_client(stdio_server_parameters, errlog=stderr)) as client:
            yield client
    assert "Traceback" not in (folder / "stderr").read_text()
    assert (folder / "code").read_text() == "0\n"


def client_here(env, url=None):
    """A client with a server in this process."""
    from mcp import Client
    from skep.mcp_server.read_tools import ServerContext
    from skep.mcp_server.server import make_server

    return Client(make_server(ServerContext(user_paths(env), env, url=url)))


async def ask(client, tool, progress_callback=None, **arguments):
    answer = await client.call_tool(tool, arguments, progress_callback=progress_callback)
    assert not answer.is_error, answer.content
    return answer.structured_content


async def wait(client, run, **heard):
    """As an orchestrator does: again and again."""
    for _ in range(60):
        status = await ask(client, "swarm_wait", run=run, seconds=10, **heard)
        if status["state"] != "running":
            return status
    raise AssertionError(status)


@pytest.fixture(scope="module")
def front(tmp_path_factory):
    """One for all tests here: each has a store of its own."""
    with FakeEngine(slots=4, token_ms=12) as engine:
        gateway_process = GatewayProcess(tmp_path_factory.mktemp("front") / "gateway.log")
        try:
            replica = {
                "name": "r0",
                "url": engine.url,
                "model": "fake-model",
                "slots": 4,
                "confirms": "slots",
            }
            gateway_process.serve([replica], ())
            yield gateway_process
        finally:
            gateway_process.close()


SHORT = [{"id": f"file-{n}", "text": f"number {n}"} for n in range(12)]
LONG = [{"prompt": f"{n}", "max_tokens": 3000} for n in range(2)]


async def wait_for(client, run, done):
    while (status := await ask(client, "swarm_wait", run=run, seconds=0.1))["done"] < done:
        assert status["state"] == "running"


async def test_a_run_is_dispatched_and_outlives_its_client_and_the_next_one_cancels_it(
    front, env, tmp_path
):
    async with speaking(env, tmp_path, front.url) as client:
        (model,) = (await ask(client, "capacity"))["models"]
        assert (model["model"], model["slots"]) == ("fake-model", 4)
        tasks = [{"id": "short", "prompt": "x", "max_tokens": 2}, *LONG]
        sent = await ask(client, "swarm_dispatch", tasks=tasks, name="three")
        assert (sent["tasks"], sent["at_once"], sent["model"]) == (3, 3, "fake-model")
        await wait_for(client, sent["run"], 1)
    async with client_here(env) as client:
        (listed,) = (await ask(client, "swarm_list"))["runs"]
        assert (listed["run"], listed["name"], listed["state"]) == (
            sent["run"],
            "three",
            "running",
        )
        cancelled = await ask(client, "swarm_cancel", run=sent["run"])
        results = await ask(client, "swarm_results", run=sent["run"])
    assert (cancelled["state"], cancelled["done"], cancelled["left"]) == ("cancelled", 1, 2)
    assert [row["id"] for row in results["results"]] == ["short"]


class FollowedRun(NamedTuple):
    """What a client was told of a run of `SHORT`, from its beginning to its end."""

    progress: list[tuple[float, float, str]]
    status: dict[str, Any]
    pages: list[dict[str, Any]]
    file_7: dict[str, Any]


@pytest.fixture(scope="module")
def followed(front, tmp_path_factory):
    """A run that was dispatched, waited for and fetched page by page, once for several tests."""
    return asyncio.run(follow(environment(tmp_path_factory.mktemp("home")), front.url))


async def follow(env, url):
    progress = []

    async def listen(done, total, message):
        progress.append((done, total, message))

    async with client_here(env, url) as client:
        sent = await ask(
            client, "swarm_dispatch", tasks=SHORT, template="Say {text}", max_tokens=10
        )
        run = sent["run"]
        status = await wait(client, run, progress_callback=listen)
        pages = [
            await ask(client, "swarm_results", run=run, page=page, page_size=5)
            for page in (1, 2, 3)
        ]
        file_7 = await ask(client, "swarm_result", run=run, task="file-7")
    return FollowedRun(progress, status, pages, file_7)


def test_dispatched_tasks_are_all_done_in_the_end(followed):
    status = followed.status
    counts = tuple(status[name] for name in ("done", "failed", "left"))
    assert (status["state"], *counts) == ("done", 12, 0, 0)
    assert status["tok_s"] > 0


def test_results_are_fetched_page_by_page(followed):
    rows = [row for page in followed.pages for row in page["results"]]
    assert [row["id"] for row in rows] == [f"file-{n}" for n in range(12)]
    assert all(row["ok"] and row["answer"] for row in rows)
    assert [page.get("next_page") for page in followed.pages] == [2, 3, None]


def test_one_result_is_fetched_whole(followed):
    result = followed.file_7
    assert (result["id"], result["ok"], result["tries"]) == ("file-7", True, 1)


def test_who_waits_hears_of_the_progress(followed):
    assert all(total == 12 and "of 12 done" in message for _, total, message in followed.progress)
    steps = [done for done, _, _ in followed.progress]
    assert steps
    assert steps == sorted(set(steps))


async def test_a_run_can_be_cancelled_and_resumed_at_once(front, env):
    async with client_here(env, front.url) as client:
        run = (await ask(client, "swarm_dispatch", tasks=LONG))["run"]
        tools = ("swarm_cancel", "swarm_resume", "swarm_cancel")
        states = [(await ask(client, tool, run=run))["state"] for tool in tools]
    assert states == ["cancelled", "running", "cancelled"]


async def test_capacity_has_the_speed_of_the_newest_benchmark_of_that_model(front, env):
    about = {
        "model": "fake-model",
        "url": front.url,
        "fingerprint": "f",
        "host": {},
        "engine": {"engine": "vllm"},
    }
    about |= {"config": {"concurrency": [1, 2]}, "simulated": False, "skep_version": "1"}
    with open_store(user_paths(env).store) as store:
        run = store.begin_run(kind="sweep", created_at=1e9, **about)
        for level in (1, 2):
            at = 10.0 * level
            times = {
                "first_token_s": at + 0.1,
                "last_token_s": at + 1,
                "output_tokens": 50,
                "status": 200,
            }
            store.append_requests(
                run, [Request(level, 0, index, "x", at, at + 1, **times) for index in range(level)]
            )
        store.end_run(run, 1e9 + 60, "done", None)
        # What a tuning tried says nothing.
        tried = store.begin_run(kind="tune", created_at=1e9 + 90, **about)
        store.end_run(tried, 1e9 + 99, "done", None)
    async with client_here(env, front.url) as client:
        (model,) = (await ask(client, "capacity"))["models"]
    assert [(level["agents"], level["tok_s"]) for level in model["measured"]] == [
        (1, 50.0),
        (2, 100.0),
    ]
    assert model["measured_run"] == run


HELLO = {
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    },
}  # fmt: skip
PING = {"jsonrpc": "2.0", "id": 2, "method": "ping"}


@pytest.mark.slow
@pytest.mark.parametrize("end", ["input", "signal"])
def test_it_ends_with_its_input_or_a_signal_and_writes_nothing_but_protocol(env, tmp_path, end):
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    with subprocess.Popen(
        [sys.executable, "-m", "skep", "mcp"], env=env, cwd=tmp_path, **pipes
    ) as process:
        process.stdin.write(f"{json.dumps(HELLO)}\n{{broken\n{json.dumps(PING)}\n")
        process.stdin.flush()
        answers = [json.loads(process.stdout.readline())]
        assert answers[0]["result"]["serverInfo"]["name"] == "skep"
        while answers[-1].get("id") != 2:
            answers.append(json.loads(process.stdout.readline()))
        if end == "input":
            process.stdin.close()
            answers += map(json.loads, process.stdout.read().splitlines())
        else:
            process.send_signal(signal.SIGTERM)
        assert process.wait(5) == 0
        assert "Traceback" not in process.stderr.read()
    assert {answer["jsonrpc"] for answer in answers} == {"2.0"}
