"""The page Chat: question after question to the model that `skep up` serves, its answers streamed
with their speed.

The gateway is asked with the visitor's own key, or with none: what it would refuse to the visitor,
the page refuses."""

from __future__ import annotations

import asyncio
import json
import os

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skep.errors import EndpointError, SkepError, UserError
from skep.swarm.address import url_here
from skep.web.context import Site
from skep.web.gateway_answer import ClientGone, GatewayAnswer, RelayedStream
from skep.web.layout import page
from skep.web.responses import body_of, json_answer
from skep.web.rights import Visitor, view_of, visitor_of
from skep.wire.client import Pool, WireFailure, fetch
from skep.wire.heads import Headers, ResponseHead, parse_url

LONGEST_BODY = 1 << 20
LIST_S = 3.0  # for the list of models
FIRST_BYTE_S = 900.0  # an answer may wait for a slot
NO_GATEWAY = "no gateway answers; `skep up -d` starts one"
UNUSABLE_STATUS = 502  # for a status that is neither an answer nor an error
LOG_IN = "/login?next=%2Fchat"


class ChatQuestion(msgspec.Struct, frozen=True):
    model: str
    messages: list[dict[str, str]]

    def body(self) -> bytes:
        streamed = {"stream": True, "stream_options": {"include_usage": True}}
        return json.dumps({"model": self.model, "messages": self.messages, **streamed}).encode()


class ServedModels(msgspec.Struct, frozen=True):
    """What the gateway offers to a visitor, or why it offers nothing."""

    names: tuple[str, ...] = ()
    problem: str = ""
    hint: str = ""
    wants_key: bool = False


class ChatPage:
    def __init__(self, site: Site) -> None:
        self.site = site

    async def show(self, request: Request) -> Response:
        visitor = visitor_of(request)
        models = await self._models(visitor)
        leaves = visitor.session is not None and not self.site.guarded
        view = view_of(self.site, request.scope)
        return page(view, "chat.html", models=models, may_leave=leaves, log_in=LOG_IN)

    async def answer(self, request: Request) -> Response:
        """Pass a question on, and what the gateway answers back as it comes.

        Who leaves ends the request.
        """
        question = await _question_of(request)
        visitor = visitor_of(request)
        answer = GatewayAnswer(await self._pool())
        fields = [
            (b"content-type", b"application/json"),
            (b"x-skep-agent", b"dashboard"),
            *_key_lines(visitor),
        ]
        is_streaming = False
        try:
            answer.ask("/v1/chat/completions", fields, question.body())
            head = await answer.wait_for_head(request.receive, FIRST_BYTE_S)
            is_streaming = head.status == 200
            if is_streaming:
                return RelayedStream(answer)
            return await _refused(answer, head, visitor)
        except ClientGone:
            # Read by nobody, mostly.
            return json_answer({"error": {"message": "the request was given up"}}, 401)
        except (WireFailure, TimeoutError) as failure:
            message = f"the gateway did not answer: {failure or 'too slow'}"
            raise EndpointError(message, hint="`skep ps` shows it") from None
        finally:
            if not is_streaming:
                await answer.close()

    async def _models(self, visitor: Visitor) -> ServedModels:
        headers = {name.decode(): value.decode("latin-1") for name, value in _key_lines(visitor)}
        try:
            pool = await self._pool()
        except SkepError:
            return ServedModels(problem=NO_GATEWAY)
        try:
            answer = await fetch(pool, "GET", "/v1/models", headers=headers, timeout_s=LIST_S)
        except WireFailure:
            return ServedModels(problem=NO_GATEWAY)
        finally:
            await pool.close()
        if answer.status != 200:
            problem = _message_of(answer.body) or f"the gateway answered HTTP {answer.status}"
            wants_key = answer.status == 401 and visitor.key is None
            return ServedModels(
                problem=problem, hint=_advice(answer.status, visitor), wants_key=wants_key
            )
        names = tuple(str(entry["id"]) for entry in answer.document().get("data", []))
        if names:
            return ServedModels(names)
        return ServedModels(problem="the gateway serves no model now")

    async def _pool(self) -> Pool:
        url = await asyncio.to_thread(url_here, self.site.paths, os.environ)
        origin, prefix = parse_url(url)
        return Pool(origin, prefix=prefix.removesuffix("/v1").encode())


async def _question_of(request: Request) -> ChatQuestion:
    received = await body_of(request, LONGEST_BODY, "the conversation", "begin a new one")
    try:
        return msgspec.json.decode(received, type=ChatQuestion)
    except msgspec.MsgspecError as error:
        hint = "send `model` and `messages` as JSON"
        raise UserError(f"the question cannot be read: {error}", hint=hint) from None


async def _refused(answer: GatewayAnswer, head: ResponseHead, visitor: Visitor) -> Response:
    """Return what the gateway says instead of an answer, in its own words, and what to do."""
    message = _message_of(await answer.error_text()) or f"HTTP {head.status}"
    error = {"message": message, "hint": _advice(head.status, visitor) or None}
    status = head.status if 400 <= head.status < 600 else UNUSABLE_STATUS
    refusal = json_answer({"error": error}, status)
    if (wait := head.get(b"retry-after")) is not None:
        refusal.headers["retry-after"] = wait.decode("latin-1")
    return refusal


def _key_lines(visitor: Visitor) -> Headers:
    if visitor.key is None:
        return []
    return [(b"authorization", b"Bearer " + visitor.key)]


def _advice(status: int, visitor: Visitor) -> str:
    """Return what a visitor can do about a refusal; empty for one that explains itself."""
    if status != 401:
        return ""
    if visitor.key is None:
        return "enter a key of the gateway at /login, or send one as `Authorization: Bearer KEY`"
    return (
        "the gateway does not know your key yet: `skep replica reload` has it read keys.toml again"
    )


def _message_of(body: bytes) -> str:
    """Return the message of an error."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def routes(site: Site) -> list[Route]:
    chat = ChatPage(site)
    return [Route("/chat", chat.show), Route("/api/chat", chat.answer, methods=["POST"])]
