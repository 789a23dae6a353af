"""The page Chat: question after question to the model that `skep up` serves, its answers streamed with their speed."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from skep.errors import EndpointError, SkepError, UserError
from skep.swarm.client import key_here, url_here
from skep.web.context import Site
from skep.web.layout import page
from skep.web.responses import body_of, json_answer
from skep.wire.client import Pool, WireFailure
from skep.wire.fetch import fetch
from skep.wire.heads import ResponseHead, lines_of, parse_url

LONGEST_BODY = 1 << 20
LIST_S, FIRST_BYTE_S = 3.0, 900.0  # of the list of models; of an answer, which may wait for a slot


class ChatQuestion(msgspec.Struct, frozen=True):
    model: str
    messages: list[dict[str, str]]


class _Pieces:
    """Receives an answer for somebody who reads it piece by piece."""

    takes_chunks = False

    def __init__(self) -> None:
        self.head: asyncio.Future[ResponseHead] = asyncio.get_running_loop().create_future()
        self.body: asyncio.Queue[bytes | None] = asyncio.Queue()

    def on_head(self, head: ResponseHead, at: float) -> None:  # noqa: ARG002
        if not self.head.done():
            self.head.set_result(head)

    def on_body(self, data: bytes, at: float) -> None:  # noqa: ARG002
        self.body.put_nowait(data)

    def on_chunks(self, raw: bytes, carried: int, at: float) -> None:  # noqa: ARG002
        raise AssertionError("chunks were not asked for")

    def on_end(self, at: float) -> None:  # noqa: ARG002
        self.body.put_nowait(None)

    def on_failure(self, failure: WireFailure, at: float) -> None:
        if not self.head.done():
            self.head.set_exception(failure)
        self.on_end(at)


class ChatPage:
    def __init__(self, site: Site) -> None:
        self.site = site

    async def show(self, _request: Request) -> Response:
        models, problem = [], ""
        try:
            pool, headers = await self._gateway()
            answer = await fetch(pool, "GET", "/v1/models", headers=headers, timeout_s=LIST_S)
            await pool.close()
            models = [str(one["id"]) for one in answer.document().get("data", [])]
            problem = "" if models else _told(answer.body) or "the gateway serves no model now"
        except (WireFailure, SkepError):
            problem = "no gateway answers; `skep up -d` starts one"
        return page(self.site, "chat.html", models=models, problem=problem)

    async def answer(self, request: Request) -> Response:
        """Pass a question on, and what the gateway answers back as it comes. Who leaves ends the request."""
        received = await body_of(request, LONGEST_BODY, "the conversation", "begin a new one")
        try:
            asked = msgspec.json.decode(received, type=ChatQuestion)
        except msgspec.MsgspecError as error:
            hint = "send `model` and `messages` as JSON"
            raise UserError(f"the question cannot be read: {error}", hint=hint) from None
        pool, headers = await self._gateway()
        more = {"stream": True, "stream_options": {"include_usage": True}}
        body = json.dumps({"model": asked.model, "messages": asked.messages, **more}).encode()
        headers |= {"content-type": "application/json", "content-length": str(len(body)), "x-skep-agent": "dashboard"}
        lines = lines_of((name.encode(), value.encode()) for name, value in headers.items())
        pieces = _Pieces()
        target = f"{pool.prefix.decode()}/v1/chat/completions"
        call = pool.send(f"POST {target} HTTP/1.1\r\n".encode() + pool.host_line + lines + b"\r\n", pieces, body)

        async def read() -> AsyncIterator[bytes]:
            try:
                while (piece := await pieces.body.get()) is not None:
                    yield piece
            finally:
                call.abort()
                await pool.close()

        try:
            head = await asyncio.wait_for(pieces.head, FIRST_BYTE_S)
        except (WireFailure, TimeoutError) as failure:
            await pool.close()
            raise EndpointError(
                f"the gateway did not answer: {failure or 'too slow'}", hint="`skep ps` shows it"
            ) from None
        if head.status != 200:
            told = b"".join([piece async for piece in read()])
            return json_answer({"error": {"message": _told(told) or f"HTTP {head.status}"}}, head.status)
        return StreamingResponse(read(), media_type="text/event-stream", headers={"cache-control": "no-store"})

    async def _gateway(self) -> tuple[Pool, dict[str, str]]:
        url = await asyncio.to_thread(url_here, self.site.paths, os.environ)
        key = await asyncio.to_thread(key_here, url, os.environ)
        origin, prefix = parse_url(url)
        pool = Pool(origin, prefix=prefix.removesuffix("/v1").encode())
        return pool, {"authorization": f"Bearer {key}"} if key else {}


def _told(body: bytes) -> str:
    """Return the message of an error."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return ""


def routes(site: Site) -> list[BaseRoute]:
    if site.public:
        return []
    chat = ChatPage(site)
    return [Route("/chat", chat.show), Route("/api/chat", chat.answer, methods=["POST"])]
