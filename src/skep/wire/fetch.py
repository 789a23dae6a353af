"""Plain requests for those who only want the answer: health checks, model lists, warm-ups."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec

from skep.wire.client import Pool, WireFailure
from skep.wire.heads import Origin, ResponseHead, lines_of

LARGEST_ANSWER_BYTES = 64 << 20  # one that never ends must not fill the memory


class HttpResponse(msgspec.Struct, frozen=True):
    head: ResponseHead
    body: bytes

    @property
    def status(self) -> int:
        return self.head.status

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", "replace")

    def document(self) -> dict[str, Any]:
        """Return the body as a JSON object; empty where it is none."""
        found = self.json()
        return found if isinstance(found, dict) else {}

    def json(self) -> Any:
        """Return the body as JSON; None where it is none."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


@dataclass
class _Collector:
    done: asyncio.Future[HttpResponse]
    most_bytes: int
    head: ResponseHead | None = None
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    takes_chunks = False

    def on_head(self, head: ResponseHead, at: float) -> None:  # noqa: ARG002
        self.head = head

    def on_body(self, data: bytes, at: float) -> None:
        self.size += len(data)
        if self.size <= self.most_bytes:
            self.parts.append(data)
        else:
            self.parts.clear()
            self.on_failure(WireFailure("protocol", f"an answer of more than {self.most_bytes:,} bytes"), at)

    def on_chunks(self, raw: bytes, carried: int, at: float) -> None:  # noqa: ARG002
        raise AssertionError("chunks were not asked for")

    def on_end(self, at: float) -> None:  # noqa: ARG002
        if not self.done.done():
            assert self.head is not None
            self.done.set_result(HttpResponse(self.head, b"".join(self.parts)))

    def on_failure(self, failure: WireFailure, at: float) -> None:  # noqa: ARG002
        if not self.done.done():
            self.done.set_exception(failure)


async def fetch(
    pool: Pool,
    method: str,
    target: str,
    *,
    body: Any = None,
    headers: dict[str, str] | None = None,
    timeout_s: float = 10.0,
    most_bytes: int = LARGEST_ANSWER_BYTES,
) -> HttpResponse:
    """Return the whole answer; `body` is sent as JSON. Raises WireFailure; a cancelled caller aborts the request."""
    collector = _Collector(asyncio.get_running_loop().create_future(), most_bytes)
    target = f"{pool.prefix.decode()}{target}"
    content = b"" if body is None else json.dumps(body, ensure_ascii=False).encode()
    fields = {"accept": "*/*", "user-agent": "skep", **(headers or {})}
    if body is not None:
        fields |= {"content-type": "application/json", "content-length": str(len(content))}
    lines = pool.host_line + lines_of((name.encode(), value.encode()) for name, value in fields.items())
    call = pool.send(f"{method} {target} HTTP/1.1\r\n".encode() + lines + b"\r\n" + content, collector)
    try:
        async with asyncio.timeout(timeout_s):
            return await collector.done
    except TimeoutError:
        raise WireFailure("timeout", f"{pool.origin}{target} did not answer within {timeout_s:g} s") from None
    finally:
        if collector.size > most_bytes or not collector.done.done() or collector.done.cancelled():
            call.abort()


async def fetch_if_there(pool: Pool, method: str, target: str, **kwargs: Any) -> HttpResponse | None:
    """`fetch`, for what a server may not have: None for a failure and for any status but 200."""
    with suppress(WireFailure):
        answer = await fetch(pool, method, target, **kwargs)
        return answer if answer.status == 200 else None
    return None


async def fetch_once(
    origin: Origin, method: str, target: str, *, timeout_s: float = 10.0, **kwargs: Any
) -> HttpResponse:
    """`fetch` on a connection of its own."""
    pool = Pool(origin, connect_timeout_s=timeout_s)
    try:
        return await fetch(pool, method, target, timeout_s=timeout_s, **kwargs)
    finally:
        await pool.close()
