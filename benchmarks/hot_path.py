"""How much Python a request and a streamed chunk pass through in the gateway: no socket, no
kernel, no other process.

    .venv/bin/python benchmarks/hot_path.py [--profile]

The real server connection, proxy, admission and client connection, between two transports that
only take bytes. Medians of 15 rounds, in microseconds, accounting afterwards included and shown
apart."""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import statistics
import time
from collections import deque
from typing import Any

import uvloop

from skep.config.gateway_messages import GatewaySetup, ReplicaSpec
from skep.gateway.admission import Admission
from skep.gateway.main import COLLECTED_AFTER
from skep.gateway.proxy import Proxy
from skep.gateway.request_accounting import Metrics, RequestAccounting
from skep.wire.client_connection import ClientConnection
from skep.wire.server import HttpServer
from skep.wire.server_connection import ServerConnection

ROUNDS = 15
REQUESTS = 400
CHUNKS = 20_000
SPEC = ReplicaSpec("r0", "m", "http://127.0.0.1:1", slots=64)
BODY = json.dumps(
    {"model": "m", "messages": [{"role": "user", "content": "word " * 380}], "stream": False}
).encode()
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: "
    b"application/json\r\nauthorization: Bearer k\r\n"
)
REQUEST = HEAD + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
ANSWER_BODY = b'{"choices":[{"message":{"content":"word"}}],"usage":{"prompt_tokens":9,"completion_tokens":3}}'
ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    % len(ANSWER_BODY)
    + ANSWER_BODY
)
STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
EVENT = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":" word"}}]}\n\n'
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)


class Transport(asyncio.Transport):
    """Takes bytes. Its methods are C, as those of a real one."""

    write = deque[bytes](maxlen=1).append
    get_write_buffer_size = staticmethod(int)
    is_closing = staticmethod(bool)
    abort = staticmethod(bool)


async def main(profile: bool) -> None:
    rows: list[Any] = []
    admission = Admission()
    accounts = RequestAccounting(Metrics(), rows.append, admission.knows)
    proxy = Proxy(admission, accounts, GatewaySetup())
    proxy.set_replicas((SPEC,), (), {})
    pool = proxy.pool(SPEC)
    client = ClientConnection(pool, asyncio.get_running_loop())
    server = ServerConnection(HttpServer(proxy.handle))
    client.connection_made(Transport())
    server.connection_made(Transport())
    pool.idle(client, time.monotonic())

    def requests() -> tuple[float, float]:
        began = time.thread_time()
        for _ in range(REQUESTS):
            server.data_received(REQUEST)
            client.data_received(ANSWER)
        ended = time.thread_time()
        accounts.settle()
        rows.clear()
        return (ended - began) / REQUESTS * 1e6, (time.thread_time() - ended) / REQUESTS * 1e6

    def chunks() -> float:
        server.data_received(REQUEST)
        client.data_received(STREAM_HEAD)
        client.data_received(CHUNK)
        began = time.thread_time()
        for _ in range(CHUNKS):
            client.data_received(CHUNK)
        took = time.thread_time() - began
        client.data_received(b"0\r\n\r\n")
        accounts.settle()
        rows.clear()
        return took / CHUNKS * 1e6

    requests()
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER)  # as the gateway does
    taken = [requests() for _ in range(ROUNDS)]
    each = [chunks() for _ in range(ROUNDS)]
    print(
        f"request of 2 KB  {statistics.median(one for one, _ in taken):6.2f} us  "
        f"({min(taken)[0]:.2f} at best)"
    )
    print(f"its accounting   {statistics.median(one for _, one in taken):6.2f} us")
    print(f"chunk            {statistics.median(each):6.2f} us  ({min(each):.2f} at best)")
    if profile:
        with cProfile.Profile() as measured:
            for _ in range(5):
                requests()
            chunks()
        measured.print_stats("tottime")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profile", action="store_true")
    uvloop.run(main(parser.parse_args().profile))
