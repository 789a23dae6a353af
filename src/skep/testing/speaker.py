"""The common part of processes that speak a documented protocol without a model: slots, words for tokens, hang-ups.

Answers are `word 0 word 1 ...`: as many tokens as asked for, each after a short pause.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from skep.testing.fake_http import FakeConnection, HttpRequest

TOKEN_S = 0.004
DEFAULT_TOKENS = 16
Route = Callable[[HttpRequest, FakeConnection], None]


class FakeProtocolServer:
    """`routes` by method and path. Requests beyond the slots wait their turn inside, as in the engines themselves."""

    def __init__(self, slots: int) -> None:
        self.running = 0
        self.waiting = 0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.finished = 0
        self.routes: dict[tuple[str, str], Route] = {}
        self.key = ""  # wanted on all paths but those that begin so
        self.open_paths: tuple[str, ...] = ()
        self._slots = asyncio.Semaphore(slots)
        self._tasks: set[asyncio.Task[None]] = set()

    def opened(self, connection: FakeConnection) -> None:
        pass

    def closed(self, connection: FakeConnection) -> None:
        pass

    def handle(self, request: HttpRequest, connection: FakeConnection) -> None:
        route = self.routes.get((request.method, request.path))
        if not request.path.startswith(self.open_paths) and not request.shows(self.key):
            connection.send_json(401, {"error": "Unauthorized"})
        elif route is None:
            connection.send_json(404, {"error": {"message": "Not Found", "type": "not_found", "code": 404}})
        else:
            route(request, connection)

    def spawn(self, work: Any, connection: FakeConnection) -> None:
        """A generation, ended when its client hangs up."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

        def hang_up() -> None:
            task.cancel()

        connection.on_hang_up = hang_up

    async def words(self, prompt_tokens: int, count: int) -> AsyncIterator[str]:
        self.waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            self.prompt_tokens += prompt_tokens
            for number in range(count):
                await asyncio.sleep(TOKEN_S)
                self.output_tokens += 1
                yield f"word{number} "
            self.finished += 1
        finally:
            self.running -= 1
            self._slots.release()

    # The OpenAI form, which both engines have

    def chat(self, request: HttpRequest, connection: FakeConnection, model: str, *, has: Callable[[str], bool]) -> None:
        try:
            body = json.loads(request.body)
            messages = body["messages"]
        except (ValueError, KeyError, TypeError):
            connection.send_json(400, {"error": {"message": "no messages", "type": "invalid_request", "code": 400}})
            return
        asked = str(body.get("model", model))
        if not has(asked):
            text = f"model '{asked}' not found"
            connection.send_json(404, {"error": {"message": text, "type": "not_found_error", "code": None}})
            return
        self.spawn(self._chat(body, messages, asked, connection), connection)

    async def _chat(self, body: dict[str, Any], messages: Any, model: str, connection: FakeConnection) -> None:
        count = int(body.get("max_tokens") or body.get("max_completion_tokens") or DEFAULT_TOKENS)
        prompt = prompt_tokens(messages)
        head = {"id": f"chatcmpl-{self.finished}", "created": int(time.time()), "model": model}
        usage = {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}
        if not body.get("stream"):
            text = "".join([word async for word in self.words(prompt, count)])
            choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
            connection.send_json(200, {**head, "object": "chat.completion", "choices": [choice], "usage": usage})
            return
        chunk = {**head, "object": "chat.completion.chunk"}
        connection.begin_stream()
        async for word in self.words(prompt, count):
            delta = {"index": 0, "delta": {"role": "assistant", "content": word}, "finish_reason": None}
            connection.chunk(_event({**chunk, "choices": [delta]}))
        connection.chunk(_event({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}))
        if (body.get("stream_options") or {}).get("include_usage"):
            connection.chunk(_event({**chunk, "choices": [], "usage": usage}))
        connection.chunk(b"data: [DONE]\n\n")
        connection.end_stream()


def prompt_tokens(messages: Any) -> int:
    return sum(len(str(message.get("content", "")).split()) for message in messages if isinstance(message, dict))


def _event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def serve(make: Callable[[], FakeProtocolServer], host: str, port: int) -> int:
    """Until SIGTERM or SIGINT. A port that is taken is said in the way that uvicorn and Go's net have in common."""

    async def run() -> int:
        loop, stop = asyncio.get_running_loop(), asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        speaker, family = make(), socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            server = await loop.create_server(lambda: FakeConnection(speaker), host, port, family=family)
        except OSError as error:
            sys.stderr.write(f"error: bind on {host}:{port}: {os.strerror(error.errno or 0).lower()}\n")
            return 1
        sys.stdout.write(f"listening on {host} port {port}\n")
        sys.stdout.flush()
        await stop.wait()
        server.close()
        return 0

    code = asyncio.run(run())
    sys.stdout.flush()
    os._exit(code)  # open streams are cut, as an engine that is told to stop cuts them


def write_program(path: str, module: str) -> None:
    """An executable of that name that runs one of these modules with its own words."""
    with open(path, "w", encoding="utf-8") as file:  # noqa: PTH123
        file.write(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n')
    os.chmod(path, 0o755)  # noqa: PTH101, S103
