"""The server over HTTP: a real socket, the official client, and those who may not come in."""

import http.client
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from skep.cli.main import tree_of
from skep.config.keys import KeySpec, add_entry, digest_of, keys_path, remove_entry
from skep.paths import user_paths

HEADERS = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
LIST = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
BEGIN = json.dumps({
    "jsonrpc": "2.0", "id": 1, "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
})  # fmt: skip
EVERYWHERE = "0.0.0.0"


@contextmanager
def served(env, host="127.0.0.1", **options):
    """In a thread, until the block ends."""
    from skep.mcp_server.read_tools import ServerContext
    from skep.mcp_server.server import listen

    ready = queue.Queue()
    with listen(ServerContext(user_paths(env), env), host=host, port=0, on_ready=ready.put, **options) as server:
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            yield ready.get(timeout=10)
        finally:
            server.stop()
            thread.join(10)


@contextmanager
def sent(url, body=LIST, method="POST", **headers):
    """The answer, of which only the head was read."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", place.port, timeout=10)
    try:
        connection.request(method, place.path, body, {**HEADERS, **headers})
        yield connection.getresponse()
    finally:
        connection.close()


def status_of(url, **headers):
    with sent(url, **headers) as answer:
        answer.read()
        return answer.status


def session_of(url, **headers):
    """The id of a new session."""
    with sent(url, BEGIN, **headers) as answer:
        assert answer.status == 200
        answer.read()
        return {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": "2025-06-18"}


async def test_on_loopback_it_answers_to_its_own_names_and_to_no_page_of_others(env):
    from mcp import Client

    with served(env) as url:
        assert url.startswith("http://127.0.0.1:")
        async with Client(url) as client:
            tools = {tool.name for tool in (await client.list_tools()).tools}
            listed = await client.call_tool("swarm_list", {})
        refused = [status_of(url, host="evil.example"), status_of(url, origin="http://evil.example")]
        own = status_of(url, origin=url.removesuffix("/mcp"))
    assert "swarm_dispatch" in tools
    assert "swarm_dispatch_file" not in tools  # whoever can reach it may not name files of this machine
    assert listed.structured_content == {"runs": []}
    assert refused == [421, 403]
    assert own not in (401, 403, 421)


async def test_beyond_loopback_a_key_is_wanted(env):
    import httpx
    from mcp.client.streamable_http import streamable_http_client

    from mcp import Client

    with served({**env, "SKEP_API_KEY": "sesame"}, EVERYWHERE) as url:
        assert status_of(url) == 401
        assert status_of(url, authorization="Bearer wrong") == 401
        here, key = url.replace(EVERYWHERE, "127.0.0.1"), {"authorization": "Bearer sesame"}
        async with (
            httpx.AsyncClient(headers=key) as client,
            Client(streamable_http_client(here, http_client=client)) as session,
        ):
            assert len((await session.list_tools()).tools) > 10


def test_a_session_is_answered_to_the_key_that_opened_it_only_and_ends_with_it(env):
    keys = keys_path(user_paths(env))
    for name in ("lost", "kept"):
        add_entry(keys, KeySpec(name, digest_of(f"sk-{name}")))
    lost, kept = ({"authorization": f"Bearer sk-{name}"} for name in ("lost", "kept"))
    with served({**env, "SKEP_API_KEY": "sesame"}, EVERYWHERE) as url:
        session = session_of(url, **lost)
        assert [status_of(url, **key, **session) for key in (lost, kept)] == [200, 404]
        assert status_of(url, authorization="Bearer sesame", **session) == 404
        with sent(url, None, "GET", **lost, **session) as stream:
            assert stream.status == 200
            remove_entry(keys, "lost")
            assert b"data:" not in stream.read()  # to its end: one that goes on runs into the time limit
        assert status_of(url, **lost, **session) == 401
        assert status_of(url, **kept, **session_of(url, **kept)) == 200


def test_sessions_are_few_and_one_that_nobody_uses_is_let_go(env):
    with served(env, most_sessions=1, session_idle_s=0.3) as url:
        first = session_of(url)
        statuses = []
        while 200 not in statuses and len(statuses) < 1000:
            with sent(url, BEGIN) as answer:
                statuses.append(answer.status)
                answer.read()
        assert statuses[0] == 503
        assert statuses[-1] == 200
        assert status_of(url, **first) == 404


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--http", "--host", EVERYWHERE, "--port", "0"], "would let anybody in"),
        (["--port", "1"], "are for --http"),
        (["--url", "ftp://x"], "ftp"),
    ],
)
def test_what_must_not_be_is_refused(env, words, said):
    assert said in str(CliRunner().invoke(tree_of(["mcp"]), ["mcp", *words], env=env).exception)


def test_without_the_extra_it_says_what_to_install(env, monkeypatch):
    monkeypatch.setitem(sys.modules, "mcp", None)
    done = CliRunner().invoke(tree_of(["mcp"]), ["mcp"], env=env)
    assert "needs the MCP SDK" in str(done.exception)
    assert done.exception.hint == "in skep's folder: pip install '.[mcp]'"


@pytest.mark.slow
def test_a_signal_ends_it_at_once(env, tmp_path):
    argv = [sys.executable, "-m", "skep", "mcp", "--http", "--port", "0"]
    with subprocess.Popen(argv, env=env, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout.readline().startswith(b"http://127.0.0.1:")
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(5) == 0
        assert b"Traceback" not in process.stderr.read()
