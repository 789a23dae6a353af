"""The first answers of `skep mcp`, which come from a stored file before the SDK is imported."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from skep.mcp_server.first_answers import META_PREFIX, Doorman, read_first_answers

ROOT = Path(__file__).parents[2]
CLIENT = {"name": "t", "version": "1"}
LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")


def request(number, method, **params):
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def initialize(version):
    return request(0, "initialize", protocolVersion=version, capabilities={}, clientInfo=CLIENT)


INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


UNREADABLE = [
    b'{"jsonrpc": "2.0", "id": 1, "method": "ping\xff"}\n',
    b'{"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"a": ' + b"[" * 100_000 + b"\n",
]


class Conversation:
    """Lines to `skep mcp` and from it."""

    def __init__(self, process):
        self.process = process

    def tell(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def ask(self, message):
        self.tell(message)
        while True:
            reply = self.hear()
            if reply.get("id") == message["id"]:
                return reply

    def hear(self):
        return json.loads(self.process.stdout.readline())

    def most_memory_mib(self):
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def has_loaded(self, library):
        return library in Path(f"/proc/{self.process.pid}/maps").read_text()


@contextmanager
def conversation(env, folder):
    argv = [sys.executable, "-m", "skep", "mcp", "--url", "http://127.0.0.1:9"]
    pipes = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    with subprocess.Popen(argv, env=env, cwd=folder, **pipes) as process:
        yield Conversation(process)
        process.stdin.close()
        assert process.wait(10) == 0
        assert "Traceback" not in process.stderr.read()


@pytest.fixture(scope="module")
def whole_server():
    """What the server says that the SDK makes of our tools."""
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import write_mcp_first_answers

        yield write_mcp_first_answers
    finally:
        sys.path.remove(str(ROOT / "scripts"))


def stored_answers(opening, requests):
    doorman = Doorman(opening)
    replies = [doorman.answer(json.dumps(message).encode()) for message in requests]
    return [json.loads(reply)["result"] for reply in replies if reply != b""]


def test_the_first_answers_are_the_whole_servers_own_in_every_protocol_version(
    whole_server,
):
    """`make docs` writes them anew."""
    opening = read_first_answers()
    for version in (*opening.versions, "2099-01-01"):
        expected = whole_server.handshake(version)
        requests = [
            initialize(version),
            INITIALIZED,
            *(request(1, method) for method in (*LISTS, "ping")),
        ]
        assert stored_answers(opening, requests) == list(expected.values())
    expected = whole_server.stateless()
    requests = [request(1, method, _meta=whole_server.STATELESS) for method in expected]
    assert stored_answers(opening, requests) == list(expected.values())


def test_a_client_that_calls_no_tool_waits_for_no_import(env, tmp_path):
    with conversation(env, tmp_path) as client:
        assert client.ask(initialize("2025-06-18"))["result"]["protocolVersion"] == "2025-06-18"
        client.tell(INITIALIZED)
        assert len(client.ask(request(1, "tools/list"))["result"]["tools"]) == 10
        assert not client.has_loaded("pydantic_core")
        listed = client.ask(request(2, "tools/call", name="swarm_list", arguments={}))
        assert listed["result"]["structuredContent"] == {"runs": []}
        assert client.has_loaded("pydantic_core")


def test_what_is_out_of_order_or_not_stored_is_left_to_the_whole_server(env, tmp_path):
    with conversation(env, tmp_path) as client:
        assert client.ask(request(1, "tools/list"))["error"]["code"] == -32602
    opening = read_first_answers()
    begun = [initialize("2025-06-18"), INITIALIZED]
    for unanswered in (
        initialize("2025-06-18"),
        request(1, "tools/list", cursor="2"),
        request(1, "prompts/get"),
        [1],
    ):
        doorman = Doorman(opening)
        assert all(doorman.answer(json.dumps(message).encode()) is not None for message in begun)
        assert doorman.answer(json.dumps(unanswered).encode()) is None
        assert len(doorman.replay()) == 2
    older = {**initialize("2025-06-18"), "jsonrpc": "1.0"}
    assert Doorman(opening).answer(json.dumps(older).encode()) is None
    unnamed = request(
        1, "server/discover", _meta={f"{META_PREFIX}protocolVersion": opening.stateless_version}
    )
    assert Doorman(opening).answer(json.dumps(unnamed).encode()) is None


@pytest.mark.parametrize("line", UNREADABLE, ids=["no text", "deep"])
def test_a_line_that_nobody_can_read_ends_no_conversation(env, tmp_path, line):
    with conversation(env, tmp_path) as client:
        client.ask(initialize("2025-06-18"))
        client.tell(INITIALIZED)
        client.process.stdin.buffer.write(line)
        assert client.ask(request(2, "ping"))["result"] == {}


def test_a_line_without_an_end_is_refused_before_it_fills_the_memory(env, tmp_path):
    with conversation(env, tmp_path) as client:
        for _ in range(300):
            client.process.stdin.buffer.write(b"x" * (1 << 20))
        client.process.stdin.buffer.write(b"\n")
        assert "a line of more than 64 MiB is not read" in client.hear()["error"]["message"]
        assert "capabilities" in client.ask(initialize("2025-06-18"))["result"]
        assert client.most_memory_mib() < 300


def test_the_whole_server_refuses_a_line_without_an_end_as_well(env, tmp_path):
    with conversation(env, tmp_path) as client:
        client.ask(initialize("2025-06-18"))
        client.tell(INITIALIZED)
        client.ask(request(1, "tools/call", name="swarm_list", arguments={}))
        client.process.stdin.buffer.write(b"x" * (65 << 20))
        client.process.stdin.buffer.write(b"\n")
        assert "swarm_dispatch_file" in client.hear()["error"]["message"]
        assert client.ask(request(2, "ping"))["result"] == {}


def test_pipes_that_do_not_block_are_read_and_written_like_others(env, tmp_path):
    """It ended before the client had said anything, with "Resource temporarily unavailable"."""
    ours_read, theirs_write = os.pipe()
    theirs_read, ours_write = os.pipe()
    for descriptor in (theirs_read, theirs_write):
        os.set_blocking(descriptor, False)
    argv = [sys.executable, "-m", "skep", "mcp", "--url", "http://127.0.0.1:9"]
    opening = [
        initialize("2025-06-18"),
        *(request(number, "tools/list") for number in range(1, 30)),
    ]
    with subprocess.Popen(
        argv, env=env, cwd=tmp_path, stdin=theirs_read, stdout=theirs_write
    ) as process:
        os.close(theirs_read)
        os.close(theirs_write)
        with open(ours_read, "rb") as replies, open(ours_write, "wb", buffering=0) as client:
            client.write(b"".join(json.dumps(message).encode() + b"\n" for message in opening))
            lines = [json.loads(replies.readline()) for _ in opening]
        assert [line["id"] for line in lines] == list(range(30))
        assert process.wait(10) == 0


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_official_client_opens_lists_and_calls(env, tmp_path, mode):
    from mcp.client.stdio import stdio_client

    from mcp import Client, StdioServerParameters

    server = StdioServerParameters(
        command=sys.executable, args=["-m", "skep", "mcp"], env=env, cwd=tmp_path
    )
    async with Client(stdio_client(server), mode=mode) as client:
        assert len((await client.list_tools()).tools) == 10
        assert (await client.call_tool("swarm_list", {})).structured_content == {"runs": []}
        prompt = await client.get_prompt("swarm", {"goal": "the goal"})
        assert "the goal" in prompt.messages[0].content.text
        assert len((await client.list_tools()).tools) == 10
