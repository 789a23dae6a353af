"""/v1/files and /v1/batches as OpenAI defines them, for the gateway to mount.

Answers are made in tasks of their own; whatever blocks (the store, the disk, a form of many megabytes) is done in
threads, so that no token of anybody waits for it. Without a batch or a file nothing is opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote

from skep.errors import SkepError
from skep.gateway.batch.files import FileStorage, new_batch_id, new_file_id
from skep.gateway.batch.objects import (
    BATCH_FILE_S,
    PURPOSES,
    BatchApiError,
    batch_document,
    expiry_seconds,
    file_document,
    no_such,
    page,
    parse_batch_spec,
    refusal_body,
)
from skep.gateway.batch.runner import BatchRunner
from skep.gateway.batch.scheduler import GatewayPort
from skep.gateway.batch.store import BatchOrder, BatchStatus, BatchStore, FileQuota, StoredBatch, StoredFile
from skep.store.database import Store, open_store
from skep.store.rows import storable
from skep.units import GIB, format_bytes
from skep.wire.server_request import ServerRequest

MOST_PARTS = 64
_HEAD_BYTES = 16_384
_PIECE = 1_048_576
_PARAMETER = re.compile(r';\s*([\w*-]+)=(?:"((?:[^"\\]|\\.)*)"|([^;\s]*))')
_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"\r\n]{1,200})"|([^;\s"]{1,200}))', re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FormPart:
    name: str
    filename: str | None  # None: a plain field
    content: memoryview

    @property
    def text(self) -> str:
        return bytes(self.content).decode("utf-8", "replace")


def boundary_of(content_type: str) -> bytes | None:
    """None: it is no multipart form."""
    kind, _, parameters = content_type.partition(";")
    found = _BOUNDARY.search(";" + parameters)
    if kind.strip().lower() != "multipart/form-data" or found is None:
        return None
    return (found[1] or found[2]).encode("latin-1", "replace")


def parts_of(body: bytes, boundary: bytes) -> list[FormPart]:
    """In their order. Raises ValueError for what is no form, or not a whole one."""
    mark = b"--" + boundary
    at = 0 if body.startswith(mark) else body.find(b"\r\n" + mark) + 2
    if at < 2 and not body.startswith(mark):
        raise ValueError("the form does not begin with its boundary")
    view, parts = memoryview(body), list[FormPart]()
    at += len(mark)
    while body[at : at + 2] != b"--":
        if len(parts) == MOST_PARTS:
            raise ValueError(f"the form has more than {MOST_PARTS} parts")
        begin = body.find(b"\r\n", at) + 2
        # A part without any header begins with the blank line itself.
        end_of_head = begin - 2 if body[begin : begin + 2] == b"\r\n" else body.find(b"\r\n\r\n", begin)
        if begin < 2 or end_of_head < 0 or end_of_head - begin > _HEAD_BYTES:
            raise ValueError("a part of the form has no end of its headers")
        end = _find(body, b"\r\n" + mark, end_of_head + 2)
        if end < 0:
            raise ValueError("the form is cut off: its last boundary is missing")
        name, filename = _names(body[begin : max(begin, end_of_head)])
        parts.append(FormPart(name, filename, view[end_of_head + 4 : max(end, end_of_head + 4)]))
        at = end + 2 + len(mark)
    return parts


def _find(body: bytes, mark: bytes, start: int) -> int:
    """Piece by piece: one search through a large file would keep every other thread waiting for its whole length."""
    for at in range(start, len(body), _PIECE):
        found = body.find(mark, at, at + _PIECE + len(mark) - 1)
        if found >= 0:
            return found
    return -1


def _names(head: bytes) -> tuple[str, str | None]:
    for line in head.split(b"\r\n"):
        field, _, value = line.partition(b":")
        if field.strip().lower() == b"content-disposition":
            told = {name.lower(): _plain(quoted or bare) for name, quoted, bare in _PARAMETER.findall(_text(value))}
            return told.get("name", ""), told.get("filename")
    raise ValueError("a part of the form has no Content-Disposition")


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _plain(text: str) -> str:
    """Quotes and line ends inside a name are percent-encoded by browsers, and escaped with a backslash by others."""
    text = re.sub(r"\\([\"\\])", r"\1", text)
    return text.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")


JSON = (b"content-type", b"application/json")
PIECE = 262_144  # bytes of a file that are sent at once
MOST_FILES, MOST_BATCHES, SOME_BATCHES = 10_000, 100, 20  # of one page of a list; also the most files of an owner
QUOTA_BYTES = 4 * GIB  # of one owner's files together, unless the settings say otherwise
MOST_INPUT = 200_000_000
LONGEST_NAME = 255
AGAIN_S = 5.0

Owner = str | None  # None: no keys are wanted, and everything is everybody's
Answering = Callable[[ServerRequest, Owner], Awaitable[dict[str, Any] | None]]
Route = Callable[[ServerRequest], None]


class BatchApi:
    """`routes` by method and path; one that ends with a slash is for all below it."""

    def __init__(
        self,
        gateway: GatewayPort,
        *,
        store: Path,
        folder: Path,
        say: Callable[[str], None],
        quota_bytes: int = QUOTA_BYTES,
    ) -> None:
        self._gateway = gateway
        self._store_path = store
        self._room = FileStorage(folder)
        self._say = say
        self._quota = FileQuota(quota_bytes, MOST_FILES)
        self._store: Store | None = None
        self._opening = asyncio.Lock()  # one connection, however many come first
        self._runner: BatchRunner | None = None
        self._wanted = asyncio.Event()
        self._leaving = False
        self._tasks: asyncio.TaskGroup | None = None
        self.routes: dict[tuple[bytes, str], Route] = {
            (b"POST", "/v1/files"): self._answers(self._create_file),
            (b"GET", "/v1/files"): self._answers(self._list_files),
            (b"GET", "/v1/files/"): self._answers(self._show_file),
            (b"DELETE", "/v1/files/"): self._answers(self._delete_file),
            (b"POST", "/v1/batches"): self._answers(self._create_batch),
            (b"GET", "/v1/batches"): self._answers(self._list_batches),
            (b"GET", "/v1/batches/"): self._answers(self._show_batch),
            (b"POST", "/v1/batches/"): self._answers(self._cancel_batch),
        }

    def __repr__(self) -> str:
        return f"<BatchApi {self._room.folder} {self._runner!r}>"

    async def run(self) -> None:
        """As long as the gateway runs. Batches that an earlier one left are taken up at once."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                if not await asyncio.to_thread(self._room.is_there):
                    await self._wanted.wait()
                while not self._leaving:
                    try:
                        store = await self._open()
                        self._runner = BatchRunner(store, self._room, self._gateway, self._say)
                        await self._runner.run()
                    except Exception as error:  # whatever it is, the gateway goes on, and the API with it
                        self._say(f"batches wait: {error!r}")
                        await asyncio.sleep(AGAIN_S)
                await asyncio.Event().wait()  # who asks for a file or a batch is still answered
        finally:
            if self._store is not None:
                self._store.close()

    @property
    def busy(self) -> bool:
        return self._runner is not None and self._runner.busy

    def leave(self) -> None:
        """Another gateway takes over: what is out is finished, nothing new is begun."""
        self._leaving = True
        self._wanted.set()
        if self._runner is not None:
            self._runner.leave()

    # Files

    async def _create_file(self, request: ServerRequest, owner: Owner) -> dict[str, Any]:
        boundary = boundary_of((request.get(b"content-type") or b"").decode("latin-1"))
        if boundary is None:
            raise BatchApiError(400, "a file comes as multipart/form-data, with the fields `file` and `purpose`")
        store = await self._open()
        body, request.body = request.body, b""
        return file_document(await asyncio.to_thread(self._keep_file, store, body, boundary, owner or ""))

    def _keep_file(self, store: BatchStore, body: bytes, boundary: bytes, owner: str) -> StoredFile:
        """In a thread."""
        try:
            parts = {part.name: part for part in parts_of(body, boundary)}
        except ValueError as error:
            raise BatchApiError(400, str(error)) from None
        content, purpose = parts.get("file"), _purpose(parts.get("purpose"))
        if content is None:
            raise BatchApiError(400, "the field `file` is missing", param="file")
        now = time.time()
        expires_s = _expiry(parts) or (BATCH_FILE_S if purpose == "batch" else None)
        name, expires_at = _plain_name(content.filename), now + expires_s if expires_s else None
        file = StoredFile(new_file_id(), owner, now, name, purpose, len(content.content), expires_at)
        if not self._quota.has_room(*store.held(owner, now), file.bytes):
            raise self._over_quota(store, file)
        self._room.require_space(file.bytes)
        self._room.write(file.id, (content.content,))
        added = False
        try:
            added = store.add_file(file, self._quota)
        finally:
            if not added:
                self._room.delete(file.id)
        if not added:  # others came first
            raise self._over_quota(store, file)
        return file

    def _over_quota(self, store: BatchStore, file: StoredFile) -> BatchApiError:
        files, taken_bytes = store.held(file.owner, file.created_at)
        whose = f"the key `{file.owner}` has" if file.owner else "there are"
        message = (
            f"{whose} {files} files of {format_bytes(taken_bytes)} here, and this one has {format_bytes(file.bytes)};"
            f" at most {self._quota.files} files of {format_bytes(self._quota.bytes)} are kept. Delete some:"
            " `GET /v1/files` lists them, `DELETE /v1/files/ID` deletes one. `files_quota` in skep.toml is the limit"
        )
        return BatchApiError(413, message, code="file_quota_exceeded", param="file")

    async def _list_files(self, request: ServerRequest, owner: Owner) -> dict[str, Any]:
        asked = _query(request)
        limit = _limit(asked, default=MOST_FILES, most=MOST_FILES)
        order = asked.get("order", "desc")
        if order not in ("asc", "desc"):
            raise BatchApiError(400, "`order` is `asc` or `desc`", param="order")
        store = await self._open()
        if "after" in asked:
            await self._file(owner, asked["after"])
        wanted: dict[str, Any] = {
            "purpose": asked.get("purpose"),
            "after": asked.get("after"),
            "ascending": order == "asc",
        }

        def listed() -> dict[str, Any]:
            found = store.files(owner=owner, limit=limit + 1, **wanted)
            return page([file_document(file) for file in found[:limit]], more=len(found) > limit)

        return await asyncio.to_thread(listed)

    async def _show_file(self, request: ServerRequest, owner: Owner) -> dict[str, Any] | None:
        name, _, rest = _below(request, "/v1/files/").partition("/")
        file = await self._file(owner, name)
        if rest == "content":
            await self._send_content(request, file)
            return None
        if rest:
            raise BatchApiError(404, f"there is nothing at {request.path[:200]}", code="not_found")
        return file_document(file)

    async def _delete_file(self, request: ServerRequest, owner: Owner) -> dict[str, Any]:
        file, store = await self._file(owner, _below(request, "/v1/files/")), await self._open()
        user = await asyncio.to_thread(store.delete_file, file.id)
        if user is not None:
            raise BatchApiError(
                409, f"{file.id} is being read by {user}; cancel that first", code="file_in_use", param="id"
            )
        await asyncio.to_thread(self._room.delete, file.id)
        return {"id": file.id, "object": "file", "deleted": True}

    async def _send_content(self, request: ServerRequest, file: StoredFile) -> None:
        """In pieces, as fast as the client reads."""
        try:
            source = await asyncio.to_thread(self._room.path(file.id).open, "rb")
        except FileNotFoundError:
            raise BatchApiError(404, f"the content of {file.id} is gone", code="not_found", param="id") from None
        goes_on, gone = asyncio.Event(), False
        goes_on.set()

        def left() -> None:
            nonlocal gone
            gone = True
            goes_on.set()

        request.on_gone, request.on_pause, request.on_resume = left, goes_on.clear, goes_on.set
        with contextlib.closing(source):
            request.start(200, [(b"content-type", b"application/octet-stream")], file.bytes)
            sent = 0
            while not gone and sent < file.bytes:
                piece = await asyncio.to_thread(source.read, min(PIECE, file.bytes - sent))
                if not piece:
                    request.cut()  # somebody shortened it
                    return
                request.write(piece)
                sent += len(piece)
                await goes_on.wait()
        request.on_gone = request.on_pause = request.on_resume = None
        request.finish()

    # Batches

    async def _create_batch(self, request: ServerRequest, owner: Owner) -> dict[str, Any]:
        wanted = parse_batch_spec(request.body)
        store, file = await self._open(), await self._file(owner, wanted.input_file_id, param="input_file_id")
        if file.purpose != "batch":
            message = f"{file.id} has the purpose `{file.purpose}`; a batch reads one with the purpose `batch`"
            raise BatchApiError(400, message, param="input_file_id")
        if file.bytes > MOST_INPUT:
            raise BatchApiError(400, f"{file.id} is larger than {MOST_INPUT} bytes", param="input_file_id")
        now = time.time()
        order = BatchOrder(
            new_batch_id(), owner or "", now, wanted.endpoint, file.id,
            wanted.completion_window, now + wanted.window_s, wanted.metadata, wanted.output_expires_s,
        )  # fmt: skip
        if not await asyncio.to_thread(store.add_batch, order):  # deleted a moment ago
            raise no_such("File", file.id, "input_file_id")
        self._wanted.set()
        if self._runner is not None:
            self._runner.wake()
        return batch_document(StoredBatch(order, BatchStatus.VALIDATING, {}, {}))

    async def _list_batches(self, request: ServerRequest, owner: Owner) -> dict[str, Any]:
        asked = _query(request)
        limit, store = _limit(asked, default=SOME_BATCHES, most=MOST_BATCHES), await self._open()
        after = asked.get("after")
        if after is not None:
            await self._batch(owner, after)
        found = await asyncio.to_thread(lambda: store.batches(owner=owner, after=after, limit=limit + 1))
        return page([batch_document(batch) for batch in found[:limit]], more=len(found) > limit)

    async def _show_batch(self, request: ServerRequest, owner: Owner) -> dict[str, Any]:
        return batch_document(await self._batch(owner, _below(request, "/v1/batches/")))

    async def _cancel_batch(self, request: ServerRequest, owner: Owner) -> dict[str, Any]:
        name, _, rest = _below(request, "/v1/batches/").partition("/")
        if rest != "cancel":
            raise BatchApiError(404, f"there is nothing at {request.path[:200]}", code="not_found")
        batch, store = await self._batch(owner, name), await self._open()
        if batch.status.is_final or batch.status is BatchStatus.FINALIZING:
            raise BatchApiError(409, f"{batch.id} cannot be cancelled: it is {batch.status.value}", code="batch_ended")
        await asyncio.to_thread(store.become, batch.id, BatchStatus.CANCELLING, time.time())
        if self._runner is not None:
            self._runner.cancel(batch.id)
        return batch_document(await self._batch(owner, name))

    # Inside

    def _answers(self, answering: Answering) -> Route:
        def route(request: ServerRequest) -> None:
            if self._tasks is None:
                self._refuse(request, BatchApiError(503, "the batch API is not ready", code="store_unavailable"))
            else:
                self._tasks.create_task(self._answer(request, self._gateway.owner_of(request), answering))

        return route

    async def _answer(self, request: ServerRequest, owner: Owner, answering: Answering) -> None:
        """Nothing a request does ends the others."""
        try:
            document = await answering(request, owner)
        except BatchApiError as refusal:
            self._refuse(request, refusal)
        except (SkepError, OSError) as error:
            self._say(f"{request.method.decode()} {request.path}: {error}")
            said = error.message if isinstance(error, SkepError) else error.strerror or str(error)
            what = f"files and batches cannot be kept now: {said}"
            self._refuse(request, BatchApiError(503, what, code="store_unavailable"))
        except Exception as error:
            self._say(f"{request.method.decode()} {request.path}: {error!r}")
            self._refuse(
                request, BatchApiError(500, "this went wrong inside; the gateway's log says how", code="internal_error")
            )
        else:
            if document is not None:
                request.respond(200, [JSON], await asyncio.to_thread(_json, document))

    def _refuse(self, request: ServerRequest, refusal: BatchApiError) -> None:
        if request.started:
            request.cut()
        else:
            later = [(b"retry-after", b"5")] if refusal.status == 503 else []
            request.respond(refusal.status, [JSON, *later], refusal_body(refusal))

    async def _open(self) -> BatchStore:
        async with self._opening:
            if self._store is not None and await asyncio.to_thread(lambda store: store.moved, self._store):
                self._say(f"`{self._store_path}` was deleted or replaced; batches that it does not hold are gone")
                moved, self._store = self._store, None
                await asyncio.to_thread(moved.close)
                if self._runner is not None:
                    self._runner.abandon()
            if self._store is None:
                self._store = await asyncio.to_thread(open_store, self._store_path)
            return BatchStore(self._store)

    async def _file(self, owner: Owner, name: str, *, param: str = "id") -> StoredFile:
        store = await self._open()
        file = await asyncio.to_thread(store.file, name)
        gone = file is None or (file.expires_at is not None and file.expires_at <= time.time())
        if file is None or gone or owner not in (None, file.owner):
            raise no_such("File", name, param)
        return file

    async def _batch(self, owner: Owner, name: str) -> StoredBatch:
        store = await self._open()
        batch = await asyncio.to_thread(store.batch, name)
        if batch is None or owner not in (None, batch.order.owner):
            raise no_such("Batch", name)
        return batch


def _json(document: dict[str, Any]) -> bytes:
    """In a thread, and in pieces: a list of ten thousand files is long, and others want their tokens meanwhile."""
    return "".join(json.JSONEncoder().iterencode(document)).encode()


def _below(request: ServerRequest, place: str) -> str:
    return unquote(request.path.removeprefix(place))


def _query(request: ServerRequest) -> dict[str, str]:
    told = parse_qs(request.target.partition(b"?")[2].decode("latin-1"))
    return {name: values[-1] for name, values in told.items()}


def _limit(asked: dict[str, str], *, default: int, most: int) -> int:
    told = asked.get("limit", str(default))
    if not told.isascii() or not told.isdigit() or not 1 <= int(told[:9]) <= most:
        raise BatchApiError(400, f"`limit` is a number from 1 to {most}", param="limit")
    return int(told)


def _plain_name(told: str | None) -> str:
    """Return the last part of a path, of any system, without what a terminal would obey."""
    name = re.split(r"[/\\]", told or "")[-1][:LONGEST_NAME]
    return storable("".join(one if one.isprintable() else "_" for one in name.lstrip("."))) or "upload"


def _purpose(part: FormPart | None) -> str:
    if part is None:
        raise BatchApiError(400, "the field `purpose` is missing", param="purpose")
    if part.text not in PURPOSES:
        raise BatchApiError(400, f"the purpose `{part.text[:32]}` is none of {', '.join(PURPOSES)}", param="purpose")
    return part.text


def _expiry(parts: dict[str, FormPart]) -> int | None:
    anchor, seconds = parts.get("expires_after[anchor]"), parts.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    told = seconds.text if seconds is not None else ""
    number = int(told) if told.isascii() and told.isdigit() and len(told) < 10 else None
    return expiry_seconds({"anchor": anchor.text if anchor else None, "seconds": number}, "expires_after")
