"""The tools by the official client, in one process: what they say, what they refuse, how they cut
and page.

The SDK takes a second to import: only a process that runs these tests does so.
"""

import asyncio
import json
import sys
import time
from functools import cache

import pytest
from click.testing import CliRunner

from skep.cli.main import tree_of
from skep.host.installation import extra_hint
from skep.paths import user_paths
from skep.store.database import open_store
from skep.swarm.records import Task, TaskEnding, TaskResult
from skep.swarm.store import Recorded, SwarmStore

NOBODY = "http://127.0.0.1:9"
LONG = "x" * 5000


class CurrentPaths:
    """The folders of the test at hand.

    To make a server takes a tenth of a second: a few do for all tests.
    """

    now = None

    def __getattr__(self, name):
        return getattr(type(self).now, name)


@cache
def server(url, longest_wait_s):
    from skep.mcp_server.read_tools import ServerContext
    from skep.mcp_server.server import make_server

    return make_server(ServerContext(CurrentPaths(), {}, url=url), longest_wait_s=longest_wait_s)


def client(url=NOBODY, longest_wait_s=45.0):
    from mcp import Client

    return Client(server(url, longest_wait_s))


@pytest.fixture
def paths(env):
    CurrentPaths.now = user_paths(env)
    return CurrentPaths.now


@pytest.fixture
def call(paths):
    """Calls a tool; its answer as JSON, or the text of its error."""

    def ask(tool, url=NOBODY, longest_wait_s=45.0, **arguments):
        async def ask_tool():
            async with client(url, longest_wait_s) as session:
                return await session.call_tool(tool, arguments)

        answer = asyncio.run(ask_tool())
        text = answer.content[0].text
        if answer.is_error:
            return text
        assert json.loads(text) == answer.structured_content
        return answer.structured_content

    return ask


def result(task, *, ok=True, answer="yes", value=None, error=None):
    ending = TaskEnding.DONE if ok else TaskEnding.FAILED
    kind = None if ok else "http"
    ended = time.time()
    return TaskResult(
        task, ending, answer, value, kind, error, 1, ended - 1.5, ended, 10, 20, "stop", "r0"
    )


def put_swarm(paths, tasks, results, *, end="done"):
    with open_store(paths.store) as store:
        swarm = SwarmStore(store)
        task_records = [Task(name, ({"role": "user", "content": "?"},)) for name in tasks]
        run = swarm.begin(
            kind="map",
            created_at=time.time() - 60,
            name="n",
            url=NOBODY,
            model="m",
            config={},
            skep_version="1",
            tasks=task_records,
        )
        session = swarm.open_session(
            run, at=time.time() - 50, agents=4, endpoint={}, simulated=False
        )
        swarm.record(run, [Recorded(None, result) for result in results])
        if end is not None:
            swarm.close_session(run, session, at=time.time(), outcome=end)
    return run


async def test_every_tool_says_what_it_does_and_whether_it_changes_anything():
    """A model decides by these words, and reads all of them in every conversation: they are kept
    short.
    """
    async with client() as session:
        tools = (await session.list_tools()).tools
        prompts = (await session.list_prompts()).prompts
    reading = {tool.name for tool in tools if tool.annotations.read_only_hint}
    assert {tool.name for tool in tools} - reading == {
        "swarm_dispatch",
        "swarm_dispatch_file",
        "swarm_cancel",
        "swarm_resume",
        "swarm_retry",
    }
    assert all(40 < len(tool.description) < 700 for tool in tools)
    assert (
        sum(len(tool.model_dump_json(by_alias=True, exclude_none=True)) for tool in tools) < 7_600
    )
    assert [prompt.name for prompt in prompts] == ["swarm"]


async def test_the_prompt_tells_an_orchestrator_how_to_go_about_it():
    async with client() as session:
        text = (
            (await session.get_prompt("swarm", {"goal": "review {every} file"}))
            .messages[0]
            .content.text
        )
    assert "Goal: review {every} file" in text
    assert all(word in text for word in ("schema", "swarm_wait", "swarm_retry"))


def test_a_wrong_argument_or_value_is_one_line_with_what_is_right(call):
    assert call("swarm_results", run="last", pages=2) == (
        "error: swarm_results has no argument `pages`\nhint: did you mean `page`?"
    )
    message = call("swarm_results", run="last", only="broken")
    assert message.startswith(
        "error: `only` is 'broken': input should be 'all', 'done' or 'failed'\nhint: "
    )


def test_where_nothing_runs_it_says_how_to_start_it_and_takes_no_tasks(call, paths):
    message = "error: skep is not running\nhint: start it with `skep up -d`"
    assert call("capacity", url=None) == message
    assert call("swarm_dispatch", url=None, tasks=["a"]) == message
    down = call("swarm_dispatch", tasks=["a", "b"])  # at a URL at which nobody answers
    assert down.startswith("error: nothing was dispatched: ")
    assert "\nhint: " in down
    assert not paths.store.exists()


def test_all_faults_of_the_tasks_are_told_before_anything_is_stored(call, paths):
    tasks = [
        {"prompt": "fine"},
        {"promt": "x"},
        {"id": "s", "prompt": "x", "schema": {"type": "nonsense"}},
        7,
    ]
    message = call("swarm_dispatch", tasks=tasks[:3])
    assert "2" in message
    assert "promt" in message
    assert "nonsense" in message
    assert "Traceback" not in message
    assert call("swarm_dispatch", tasks=tasks[3:]).startswith("error: ")
    assert not paths.store.exists()


def test_a_file_of_tasks_is_named_by_its_whole_path(call, tmp_path):
    assert "is not absolute" in call("swarm_dispatch_file", path="tasks.jsonl")
    assert "No such file" in call("swarm_dispatch_file", path=str(tmp_path / "none.jsonl"))
    (tmp_path / "tasks.jsonl").write_text('{"prompt": "a"}\n')
    (tmp_path / "there").write_text("something\n")
    message = call(
        "swarm_dispatch_file", path=f"{tmp_path}/tasks.jsonl", output=f"{tmp_path}/there"
    )
    assert "already exists" in message


NAMES = [f"t{number}" for number in range(25)]


@pytest.fixture
def long_run(paths):
    """A run of 25 tasks: the last three answered at length, answered with a value, and failed."""
    results = [result(name) for name in NAMES[:22]]
    results += [result("t22", answer=LONG), result("t23", answer='{"a": null}', value={"a": None})]
    results += [result("t24", ok=False, answer=None, error="HTTP 500")]
    return put_swarm(paths, NAMES, results)


def test_results_come_page_by_page(call, long_run):
    first = call("swarm_results", run=long_run, page_size=100)
    assert [row["id"] for row in first["results"]] == NAMES[:20]
    assert (first["pages"], first["next_page"], first["matching"]) == (2, 2, 25)
    last = call("swarm_results", run="last", page=2, page_size=20)
    assert [row["id"] for row in last["results"]] == NAMES[20:]
    assert "next_page" not in last
    assert call("swarm_results", run=long_run, page=9)["results"] == []


def test_answers_in_a_page_of_results_are_cut(call, long_run):
    last = call("swarm_results", run=long_run, page=2, page_size=20, chars_per_answer=9999)
    long, value, failed = last["results"][2:]
    assert len(long["answer"]) == 2000
    assert long["cut"] == 5000
    assert value == {"id": "t23", "ok": True, "value": {"a": None}}
    assert failed == {"id": "t24", "ok": False, "error": "HTTP 500"}


def test_the_failed_results_can_be_asked_for_alone(call, long_run):
    failed = call("swarm_results", run=long_run, only="failed")["results"]
    assert [row["id"] for row in failed] == ["t24"]


def test_one_result_is_had_in_full(call, paths):
    run = put_swarm(paths, ["a", "b"], [result("a", answer=LONG * 5)], end="stopped")
    whole = call("swarm_result", run=run, task="a")
    assert (len(whole["answer"]), whole["cut"], whole["tries"]) == (20_000, 25_000, 1)
    assert "has no result yet" in call("swarm_result", run=run, task="b")
    assert "no task `c`" in call("swarm_result", run=run, task="c")


def test_waiting_for_a_run_that_has_ended_returns_at_once(call, paths):
    run = put_swarm(paths, ["a", "b"], [result("a"), result("b", ok=False, error="bad " * 200)])
    began = time.monotonic()
    status = call("swarm_wait", run=run)
    assert time.monotonic() - began < 40
    assert (status["state"], status["done"], status["failed"], status["left"]) == ("done", 1, 1, 0)
    assert status["failures"][0]["task"] == "b"
    assert len(status["failures"][0]["error"]) <= 300
    assert status["tok_s"] == 0.8  # 40 tokens in a session of 50 s
    assert "swarm_retry" in status["next"]


def test_no_wait_is_longer_than_the_longest(call, paths):
    """Clients drop calls that take longer, whatever was asked for."""
    run = put_swarm(paths, ["a", "b"], [result("a")], end=None)
    began = time.monotonic()
    status = call("swarm_wait", longest_wait_s=0.3, run=run, seconds=86400)
    assert (status["state"], status["left"]) == ("running", 1)
    assert 0.3 <= time.monotonic() - began < 40


def test_what_can_be_done_with_a_run_that_stopped_or_did_not_fail(call, paths):
    """Runs are listed newest first."""
    assert call("swarm_list") == {"runs": []}
    stopped = call("swarm_wait", run=put_swarm(paths, ["a", "b"], [result("a")], end="stopped"))
    assert stopped["state"] == "stopped"
    assert "swarm_resume" in stopped["next"]
    run = put_swarm(paths, ["a"], [result("a")])
    assert call("swarm_retry", run=run).startswith(f"error: no task of `{run}` failed\nhint: ")
    assert [row["run"] for row in call("swarm_list", limit=1)["runs"]] == [run]
    assert "there is no swarm run" in call("swarm_wait", run="no-such")


def test_without_the_extra_it_says_what_to_install_and_a_wrong_address_is_refused(
    env, monkeypatch
):
    refused = CliRunner().invoke(tree_of(["mcp"]), ["mcp", "--url", "ftp://x"], env=env)
    assert "ftp" in str(refused.exception)
    monkeypatch.setitem(sys.modules, "mcp", None)
    done = CliRunner().invoke(tree_of(["mcp"]), ["mcp"], env=env)
    assert "needs the MCP SDK" in str(done.exception)
    assert done.exception.hint == extra_hint("mcp")
