"""A client of a few lines for the fake engine's tests: one connection per request, bytes as they came."""

from __future__ import annotations

import asyncio
import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


def call(url: str, method: str, path: str, body: bytes | dict[str, Any] | None = None) -> Reply:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)
    try:
        connection.request(method, path, json.dumps(body) if isinstance(body, dict) else body)
        answer = connection.getresponse()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Reply(answer.status, headers, answer.read())
    finally:
        connection.close()


def chat(*, words: int = 3, tokens: int | None = 8, stream: bool = True, **more: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "word " * words}], "stream": stream, **more}
    return body if tokens is None else body | {"max_tokens": tokens}


@dataclass
class Stream:
    """A streamed answer being read by hand."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    raw: bytes = b""

    async def to_the_end(self) -> bytes:
        """Up to the connection's close."""
        self.raw += await self.reader.read()
        return self.raw

    async def hang_up(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def send(url: str, body: dict[str, Any]) -> Stream:
    where = urlsplit(url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: t\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    return Stream(reader, writer)


async def read_all(url: str, body: dict[str, Any]) -> Stream:
    stream = await send(url, body)
    try:
        await stream.to_the_end()
    finally:
        await stream.hang_up()
    return stream
