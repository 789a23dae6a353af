"""/v1/files and /v1/batches as OpenAI defines them, for the gateway to mount. Knows nothing of how
batches are carried out.

The shapes are OpenAI's: https://platform.openai.com/docs/api-reference/batch and /files. Answers
are made in threads: the store, the disk and a form of many megabytes block, and no token of
anybody waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, unquote

import msgspec
from msgspec import Meta

from skep.config.gateway_messages import BatchPlaces
from skep.errors import SkepError
from skep.gateway.batch.files import FileStorage, boundary_of, new_file_id, parts_of
from skep.gateway.batch.routes import BatchRoute
from skep.gateway.batch.runner import BatchGatewayPort, BatchRunner
from skep.gateway.batch.store import (
    BATCH_FILE_S,
    BatchOrder,
    BatchStatus,
    BatchStore,
    StoredBatch,
    StoredFile,
)
from skep.gateway.error_format import JSON
from skep.gateway.proxy import Proxy
from skep.store.database import Store, open_store
from skep.store.rows import storable
from skep.wire.server_request import ServerRequest

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
PURPOSE = "batch"  # files are for batches: nothing else here reads one
LONGEST_WINDOW_S = 86_400
PIECE_BYTES = 262_144  # bytes of a file that are sent at once
# of one page of a list
MOST_FILES = 10_000
MOST_BATCHES = 100
SOME_BATCHES = 20
MOST_INPUT = 200_000_000
LONGEST_NAME = 255
AGAIN_S = 5.0
_WINDOW = re.compile(r"([1-9][0-9]{0,6})([hms])")
_UNITS = {"h": 3600, "m": 60, "s": 1}
SHOWN_TIMES = [status for status in BatchStatus if status is not BatchStatus.VALIDATING]

Owner = str | None  # None: no keys are wanted, and everything is everybody's
Document = dict[str, Any]
# A StoredFile is answered with what it holds.
Answering = Callable[[BatchStore, ServerRequest, Owner], Document | StoredFile]
Route = Callable[[ServerRequest], None]


@dataclass(eq=False)
class BatchApiError(Exception):
    """The answer to a request that cannot be met."""

    status: int
    message: str
    code: str = "bad_request"
    param: str | None = None


class BatchApi:
    """`routes`: what answers each of `BatchRoute`."""

    def __init__(self, proxy: Proxy, places: BatchPlaces, say: Callable[[str], None]) -> None:
        self._key_of = proxy.key_of
        self._store_path = Path(places.store)
        self._room = FileStorage(Path(places.files))
        self._say = say
        self.runner = BatchRunner(self._room, BatchGatewayPort(proxy), say)
        self._store: Store | None = None
        self._opening = asyncio.Lock()  # one connection, however many come first
        self._tasks = asyncio.TaskGroup()
        answering: dict[BatchRoute, Answering] = {
            BatchRoute.CREATE_FILE: self._create_file,
            BatchRoute.LIST_FILES: self._list_files,
            BatchRoute.SHOW_FILE: self._show_file,
            BatchRoute.DELETE_FILE: self._delete_file,
            BatchRoute.CREATE_BATCH: self._create_batch,
            BatchRoute.LIST_BATCHES: self._list_batches,
            BatchRoute.SHOW_BATCH: self._show_batch,
            BatchRoute.CANCEL_BATCH: self._cancel_batch,
        }
        self.routes: dict[tuple[bytes, str], Route] = {
            route.value: self._answers(answering[route]) for route in BatchRoute
        }

    async def run(self) -> None:
        """Carry out batches as long as the gateway runs, beginning with those that an earlier one
        left.
        """
        try:
            async with self._tasks:
                while not self.runner.leaving:
                    try:
                        await self.runner.run(await self._open())
                    except Exception as error:  # whatever it is, the API goes on
                        self._say(f"batches are waiting: {error!r}")
                        await asyncio.sleep(AGAIN_S)
                await asyncio.Event().wait()  # requests for files and batches are still answered
        finally:
            if self._store is not None:
                self._store.close()

    # Files, in threads

    def _create_file(self, store: BatchStore, request: ServerRequest, owner: Owner) -> Document:
        boundary = boundary_of((request.get(b"content-type") or b"").decode("latin-1"))
        if boundary is None:
            raise BatchApiError(
                400,
                "a file must be sent as multipart/form-data, with the fields `file` and `purpose`",
            )
        body = request.body
        request.body = b""
        try:
            parts = {part.name: part for part in parts_of(body, boundary)}
        except ValueError as error:
            raise BatchApiError(400, str(error)) from None
        for field in ("purpose", "file"):
            if field not in parts:
                raise BatchApiError(400, f"the field `{field}` is missing", param=field)
        content = parts["file"]
        purpose = parts["purpose"].text
        if purpose != PURPOSE:
            message = f"the `purpose` of a file must be `{PURPOSE}`, not `{purpose[:32]}`"
            raise BatchApiError(400, message, param="purpose")
        now = time.time()
        size = len(content.content)
        file = StoredFile(
            id=new_file_id(),
            owner=owner or "",
            created_at=now,
            filename=_plain_name(content.filename),
            purpose=purpose,
            bytes=size,
            expires_at=now + BATCH_FILE_S,
        )
        self._room.require_space(size)
        self._room.write(file.id, (content.content,))
        try:
            store.add_file(file)
        except BaseException:
            self._room.delete(file.id)
            raise
        return file_document(file)

    def _list_files(self, store: BatchStore, request: ServerRequest, owner: Owner) -> Document:
        query = _query(request)
        limit = _limit(query, default=MOST_FILES, maximum=MOST_FILES)
        after = query.get("after")
        if after is not None:
            _file(store, owner, after)
        files = store.files(owner, query.get("purpose"), after, limit=limit + 1)
        return page([file_document(file) for file in files], limit)

    def _show_file(
        self, store: BatchStore, request: ServerRequest, owner: Owner
    ) -> Document | StoredFile:
        name, _, rest = _below(request, "/v1/files/").partition("/")
        file = _file(store, owner, name)
        if rest not in ("", "content"):
            raise BatchApiError(404, f"no such path: {request.path[:200]}", code="not_found")
        return file if rest else file_document(file)

    def _delete_file(self, store: BatchStore, request: ServerRequest, owner: Owner) -> Document:
        file = _file(store, owner, _below(request, "/v1/files/"))
        user = store.delete_file(file.id)
        if user is not None:
            message = f"{file.id} is being read by {user}; cancel that first"
            raise BatchApiError(409, message, code="file_in_use", param="id")
        self._room.delete(file.id)
        return {"id": file.id, "object": "file", "deleted": True}

    # Batches, in threads

    def _create_batch(self, store: BatchStore, request: ServerRequest, owner: Owner) -> Document:
        batch_spec = parse_batch_spec(request.body)
        window_s = window_seconds(batch_spec.completion_window)
        file = _file(store, owner, batch_spec.input_file_id, param="input_file_id")
        if file.purpose != PURPOSE:
            message = (
                f"{file.id} has the purpose `{file.purpose}`; a batch reads one with the "
                "purpose `batch`"
            )
            raise BatchApiError(400, message, param="input_file_id")
        if file.bytes > MOST_INPUT:
            raise BatchApiError(
                400, f"{file.id} is larger than {MOST_INPUT} bytes", param="input_file_id"
            )
        now = time.time()
        batch_id = f"batch_{secrets.token_hex(12)}"
        order = BatchOrder(
            id=batch_id,
            owner=owner or "",
            created_at=now,
            endpoint=batch_spec.endpoint,
            input_file_id=file.id,
            completion_window=batch_spec.completion_window,
            expires_at=now + window_s,
            metadata=batch_spec.metadata,
        )
        if not store.add_batch(order):  # deleted a moment ago
            raise _no_such("File", file.id, "input_file_id")
        return batch_document(_batch(store, owner, batch_id))

    def _list_batches(self, store: BatchStore, request: ServerRequest, owner: Owner) -> Document:
        query = _query(request)
        limit = _limit(query, default=SOME_BATCHES, maximum=MOST_BATCHES)
        after = query.get("after")
        if after is not None:
            _batch(store, owner, after)
        batches = store.batches(owner, after, limit=limit + 1)
        return page([batch_document(batch) for batch in batches], limit)

    def _show_batch(self, store: BatchStore, request: ServerRequest, owner: Owner) -> Document:
        return batch_document(_batch(store, owner, _below(request, "/v1/batches/")))

    def _cancel_batch(self, store: BatchStore, request: ServerRequest, owner: Owner) -> Document:
        name, _, rest = _below(request, "/v1/batches/").partition("/")
        if rest != "cancel":
            raise BatchApiError(404, f"no such path: {request.path[:200]}", code="not_found")
        batch = _batch(store, owner, name)
        if batch.status.is_final or batch.status is BatchStatus.FINALIZING:
            raise BatchApiError(
                409, f"{name} cannot be cancelled: it is {batch.status.value}", code="batch_ended"
            )
        store.become(name, BatchStatus.CANCELLING, time.time())
        return batch_document(_batch(store, owner, name))

    # Inside

    def _answers(self, answering: Answering) -> Route:
        def route(request: ServerRequest) -> None:
            key = self._key_of(request)
            owner = key.name if key is not None else None
            self._tasks.create_task(self._answer(request, owner, answering))

        return route

    async def _answer(self, request: ServerRequest, owner: Owner, answering: Answering) -> None:
        """Answer a request. Nothing that it does ends the others."""
        try:
            store = await self._open()
            answer = await asyncio.to_thread(answering, store, request, owner)
            if isinstance(answer, StoredFile):
                await self._send_content(request, answer)
                return
            if request.method == b"POST":
                self.runner.wake.set()  # for a batch that is new, or is cancelled
            request.respond(200, [JSON], await asyncio.to_thread(msgspec.json.encode, answer))
        except BatchApiError as refusal:
            _refuse(request, refusal)
        except (SkepError, OSError) as error:
            self._say(f"{request.method.decode()} {request.path}: {error}")
            if isinstance(error, SkepError):
                reason = error.message
            else:
                reason = error.strerror or str(error)
            message = f"files and batches cannot be stored now: {reason}"
            _refuse(request, BatchApiError(503, message, code="store_unavailable"))
        except Exception as error:
            self._say(f"{request.method.decode()} {request.path}: {error!r}")
            message = "internal error; the gateway's log has the details"
            _refuse(request, BatchApiError(500, message, code="internal_error"))

    async def _send_content(self, request: ServerRequest, file: StoredFile) -> None:
        """Send a file in pieces, as fast as the client reads."""
        try:
            source = await asyncio.to_thread(self._room.path(file.id).open, "rb")
        except FileNotFoundError:
            raise BatchApiError(
                404, f"the content of {file.id} is missing", code="not_found", param="id"
            ) from None
        goes_on = asyncio.Event()
        task = asyncio.current_task()
        goes_on.set()

        def stop_sending() -> None:
            assert task is not None
            task.cancel()

        request.on_gone = stop_sending
        request.on_pause = goes_on.clear
        request.on_resume = goes_on.set
        with contextlib.closing(source):
            request.start(200, [(b"content-type", b"application/octet-stream")], file.bytes)
            sent = 0
            while sent < file.bytes:
                piece = await asyncio.to_thread(source.read, min(PIECE_BYTES, file.bytes - sent))
                if not piece:
                    request.cut()  # somebody shortened it
                    return
                request.write(piece)
                sent += len(piece)
                await goes_on.wait()
        request.on_gone = request.on_pause = request.on_resume = None
        request.finish()

    async def _open(self) -> BatchStore:
        async with self._opening:
            store = self._store
            if store is None or await asyncio.to_thread(lambda: store.moved):
                self._store = await asyncio.to_thread(open_store, self._store_path)
                if store is not None:
                    self._say(
                        f"`{self._store_path}` was deleted or replaced; batches that it "
                        "does not hold are lost"
                    )
                    self.runner.wake.set()
                    # Last: no other file has its identity while it is open.
                    await asyncio.to_thread(store.close)
            assert self._store is not None
            return BatchStore(self._store)


# What a client asks for

_Metadata = dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]]


class BatchSpec(msgspec.Struct, frozen=True):
    """A batch as its client asks for it."""

    endpoint: str
    input_file_id: str
    completion_window: str
    metadata: Annotated[_Metadata, Meta(max_length=16)] | None = None


def parse_batch_spec(body: bytes) -> BatchSpec:
    """Return the batch that a body asks for. Raises BatchApiError."""
    try:
        spec = msgspec.json.decode(body, type=BatchSpec)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        param = next((name for name in BatchSpec.__struct_fields__ if name in str(error)), None)
        raise BatchApiError(
            400, f"the body is not a batch request: {error}", param=param
        ) from None
    if spec.endpoint not in ENDPOINTS:
        message = (
            f"the endpoint `{spec.endpoint[:64]}` does not take batches; {', '.join(ENDPOINTS)} do"
        )
        raise BatchApiError(400, message, param="endpoint")
    return spec


def window_seconds(window: str) -> int:
    """Return the seconds of a completion window: `24h`, as OpenAI takes it, or a shorter one.
    Raises BatchApiError.
    """
    match = _WINDOW.fullmatch(window)
    seconds = int(match[1]) * _UNITS[match[2]] if match else 0
    if not 0 < seconds <= LONGEST_WINDOW_S:
        message = (
            f"the completion_window `{window[:32]}` is not `24h` or a shorter one such as `90m`"
        )
        raise BatchApiError(400, message, param="completion_window")
    return seconds


def _plain_name(filename: str | None) -> str:
    """Return the last part of a path, of any system, without what a terminal would obey."""
    name = re.split(r"[/\\]", filename or "")[-1][:LONGEST_NAME].lstrip(".")
    printable = (character if character.isprintable() else "_" for character in name)
    return storable("".join(printable)) or "upload"


def _below(request: ServerRequest, place: str) -> str:
    return unquote(request.path.removeprefix(place))


def _query(request: ServerRequest) -> dict[str, str]:
    qs = parse_qs(request.target.partition(b"?")[2].decode("latin-1"))
    return {name: values[-1] for name, values in qs.items()}


def _limit(query: dict[str, str], *, default: int, maximum: int) -> int:
    limit = query.get("limit", str(default))
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= maximum:
        raise BatchApiError(400, f"`limit` must be a number from 1 to {maximum}", param="limit")
    return int(limit)


def _file(store: BatchStore, owner: Owner, name: str, *, param: str = "id") -> StoredFile:
    file = store.file(name)
    is_there = file is not None and (file.expires_at or inf) > time.time()
    if file is None or not is_there or owner not in (None, file.owner):
        raise _no_such("File", name, param)
    return file


def _batch(store: BatchStore, owner: Owner, name: str) -> StoredBatch:
    batch = store.batch(name)
    if batch is None or owner not in (None, batch.order.owner):
        raise _no_such("Batch", name)
    return batch


# What it is shown


def _no_such(kind: str, name: str, param: str = "id") -> BatchApiError:
    """Return the refusal for a "File" or a "Batch", in the same words for one that never was and
    for one of another key.
    """
    status = 404 if param == "id" else 400
    return BatchApiError(
        status, f"No such {kind} object: {name[:64]}", code="not_found", param=param
    )


def _refuse(request: ServerRequest, refusal: BatchApiError) -> None:
    if request.started:
        request.cut()
        return
    kind = "server_error" if refusal.status >= 500 else "invalid_request_error"
    error = {
        "message": refusal.message,
        "type": kind,
        "param": refusal.param,
        "code": refusal.code,
    }
    later = [(b"retry-after", b"5")] if refusal.status == 503 else []
    request.respond(
        refusal.status, [JSON, *later], json.dumps({"error": error, "source": "gateway"}).encode()
    )


def file_document(file: StoredFile) -> Document:
    return {
        "id": file.id,
        "bytes": file.bytes,
        "filename": file.filename,
        "purpose": file.purpose,
        "object": "file",
        "created_at": int(file.created_at),
        "expires_at": _unix_time(file.expires_at),
        "status": "processed",
        "status_details": None,
    }


def batch_document(batch: StoredBatch) -> Document:
    order = batch.order
    detail = batch.detail
    tally = detail["tally"]
    faults = detail.get("errors")
    times = {f"{status}_at": _unix_time(batch.times.get(status)) for status in SHOWN_TIMES}
    return {
        "id": order.id,
        "endpoint": order.endpoint,
        "input_file_id": order.input_file_id,
        "completion_window": order.completion_window,
        "model": detail.get("model"),
        "output_file_id": detail.get("output_file_id"),
        "error_file_id": detail.get("error_file_id"),
        "object": "batch",
        "errors": None if faults is None else {"object": "list", "data": faults},
        "status": batch.status.value,
        "created_at": int(order.created_at),
        "expires_at": int(order.expires_at),
        **times,
        "request_counts": {
            "total": detail.get("total", 0),
            "completed": tally["completed"],
            "failed": tally["failed"],
        },
        "usage": _usage(tally) if batch.status.is_final else None,
        "metadata": None if order.metadata is None else dict(order.metadata),
    }


def _unix_time(at: float | None) -> int | None:
    return int(at) if at is not None else None


def _usage(tally: Document) -> Document | None:
    """Return the tokens of a batch; None: no answer reported any.

    Details that were never reported are 0, as clients expect a number.
    """
    counts = {
        name: tally.get(f"{name}_tokens") for name in ("prompt", "cached", "output", "reasoning")
    }
    if counts["prompt"] is None and counts["output"] is None:
        return None
    prompt, cached, output, reasoning = (count or 0 for count in counts.values())
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cached},
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": prompt + output,
    }


def page(documents: list[Document], limit: int) -> Document:
    data = documents[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(documents) > limit,
    }
