"""What the files of the batch API hold, on disk: one file each, named by its id, in a folder of the owner's alone.

A file is there whole or not at all: it is written under another name, flushed, and renamed. Who knows an id of which no
content is here has one that was deleted by hand.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from skep.gateway.batch.store import BatchRequest
from skep.units import MIB, format_bytes

KEPT_FREE_BYTES = 512 * MIB  # of the disk, for results, the store and everything else that is on it
UNFINISHED = ".part"
UNFINISHED_S = 3600.0  # after so long nobody writes to it any more
ORPHANED_S = 30 * 86_400.0  # a name without a row: an upload that was killed, or a store that may be brought back
FILE_ID = re.compile(r"file-[0-9a-f]{24}")


def new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


def new_batch_id() -> str:
    return f"batch_{secrets.token_hex(12)}"


class FileStorage:
    """Every call blocks: for threads."""

    def __init__(self, folder: Path, *, kept_free_bytes: int = KEPT_FREE_BYTES) -> None:
        self.folder = folder
        self._kept_free_bytes = kept_free_bytes

    def __repr__(self) -> str:
        return f"<FileStorage {self.folder}>"

    def is_there(self) -> bool:
        """Return whether there ever was a file."""
        with contextlib.suppress(OSError):
            return self.folder.exists()
        return False

    def path(self, file_id: str) -> Path:
        assert FILE_ID.fullmatch(file_id), file_id
        return self.folder / file_id

    def require_space(self, more_bytes: int) -> None:
        """Raise OSError unless the disk has room for so much and what is kept free for others."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(self.folder).free
        if free_bytes - more_bytes < self._kept_free_bytes:
            has, keeps = format_bytes(free_bytes), format_bytes(self._kept_free_bytes)
            message = f"the disk has {has} free, and uploads leave {keeps}; delete files (`DELETE /v1/files/ID`)"
            raise OSError(errno.ENOSPC, message)

    def write(self, file_id: str, pieces: Iterable[bytes | memoryview]) -> int:
        """Return how many bytes. Raises OSError with nothing left behind."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.path(file_id)
        part = path.with_name(path.name + UNFINISHED)
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                for piece in pieces:
                    file.write(piece)
                size = file.tell()
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        self._flush_names()
        return size

    def read(self, file_id: str, start: int, length: int) -> bytes:
        with self.path(file_id).open("rb") as file:
            return os.pread(file.fileno(), length, start)

    def delete(self, file_id: str) -> None:
        with contextlib.suppress(OSError):
            self.path(file_id).unlink()

    def sweep(self, known: Iterable[str], now: float | None = None) -> None:
        """Remove what was left by processes that were killed: unfinished files, and very old ones that no row knows."""
        ids, now = set(known), time.time() if now is None else now
        with contextlib.suppress(FileNotFoundError):
            for path in self.folder.iterdir():
                name = path.name.removesuffix(UNFINISHED)
                if not FILE_ID.fullmatch(name) or path.name in ids:
                    continue
                kept_s = ORPHANED_S if name == path.name else UNFINISHED_S
                with contextlib.suppress(OSError):
                    if now - path.stat().st_mtime > kept_s:
                        path.unlink()

    def _flush_names(self) -> None:
        """A rename is on disk only when its folder is."""
        descriptor = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


MOST_REQUESTS = 50_000
MOST_ERRORS = 100  # told of one file
LONGEST_ID = 512  # characters of a custom id
_BOM = b"\xef\xbb\xbf"
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class LineError:
    code: str
    message: str
    line: int | None = None
    param: str | None = None


@dataclass(frozen=True, slots=True)
class CheckedInput:
    """`requests` are to be sent only where there are no `faults`. `first` is the line of the first request."""

    requests: tuple[BatchRequest, ...]
    model: str | None
    faults: tuple[LineError, ...]
    first: int | None = None


class _BatchLine(msgspec.Struct):
    custom_id: str | None = None
    method: str | None = None
    url: str | None = None
    body: msgspec.Raw = msgspec.Raw(b"")


class _BatchBody(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None


_lines = msgspec.json.Decoder(_BatchLine)
_bodies = msgspec.json.Decoder(_BatchBody)


class _InvalidLine(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


def check_lines(lines: Iterable[bytes], endpoint: str, most: int = MOST_REQUESTS) -> CheckedInput:
    """Return all that can be said without asking who serves the model."""
    requests: list[BatchRequest] = []
    faults: list[LineError] = []
    seen: dict[str, int] = {}
    models: list[str | None] = []
    at = 0
    for number, line in enumerate(lines, start=1):
        start, at = at, at + len(line)
        text = line.removeprefix(_BOM) if number == 1 else line
        if not text.strip():
            continue
        if len(requests) == most:
            faults.append(LineError("too_many_tasks", f"the file has more than {most} requests", number))
            break
        try:
            custom_id, model = _check(text, endpoint)
            if custom_id in seen:
                raise _InvalidLine(
                    "duplicate_custom_id",
                    f"the custom_id {_short(custom_id)} is that of line {seen[custom_id]} already",
                    "custom_id",
                )
            seen[custom_id] = number
            if not models:
                models.append(model)
            elif model != models[0]:
                first = "none" if models[0] is None else _short(models[0])
                raise _InvalidLine(
                    "model_mismatch",
                    f"the model {'none' if model is None else _short(model)} is not that of the requests before"
                    f" ({first}): one model a batch",
                    "body.model",
                )
            skipped = len(line) - len(text)
            requests.append(BatchRequest(len(requests), custom_id, start + skipped, len(text)))
        except _InvalidLine as wrong:
            faults.append(LineError(wrong.code, str(wrong), number, wrong.param))
            if len(faults) == MOST_ERRORS:
                break
    if not requests and not faults:
        faults.append(LineError("empty_file", "the file has no requests"))
    first_line = min(seen.values()) if seen else None
    return CheckedInput(tuple(requests), models[0] if models else None, tuple(faults), first_line)


def body_of(line: bytes) -> bytes:
    """The request's body, byte for byte as it stands in a line that was checked. ValueError: somebody changed it."""
    try:
        return bytes(_lines.decode(line).body)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def _check(text: bytes, endpoint: str) -> tuple[str, str | None]:
    line = _read(text)
    if not line.custom_id:
        raise _InvalidLine("missing_required_parameter", "`custom_id` is missing", "custom_id")
    if len(line.custom_id) > LONGEST_ID:
        raise _InvalidLine("invalid_custom_id", f"the custom_id is longer than {LONGEST_ID} characters", "custom_id")
    if line.method is None or line.method.upper() != "POST":
        raise _InvalidLine("invalid_method", f"`method` is {_short(line.method)}; POST is what a batch does", "method")
    if line.url != endpoint:
        raise _InvalidLine("url_mismatch", f"`url` is {_short(line.url)}; the batch is for {endpoint}", "url")
    if not bytes(line.body):
        raise _InvalidLine("missing_required_parameter", "`body` is missing", "body")
    try:
        body = _bodies.decode(line.body)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _InvalidLine("invalid_request", f"`body`: {error}", "body") from None
    if body.stream:
        raise _InvalidLine("invalid_request", "`stream` is not for batches: answers go into a file", "body.stream")
    return line.custom_id, body.model


def _read(text: bytes) -> _BatchLine:
    try:
        text.decode()  # what stands deeper in a body is not looked at below
        return _lines.decode(text)
    except msgspec.ValidationError as error:
        raise _InvalidLine("invalid_request", f"not a request: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _InvalidLine("invalid_json_line", f"this line cannot be read as JSON: {error}") from None


def _short(value: Any) -> str:
    if value is None:
        return "missing"
    text = str(value)
    return f"`{text if len(text) <= _SHOWN else text[:_SHOWN] + '…'}`"
