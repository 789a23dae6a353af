"""Files of the batch API: the form they are uploaded with, their place on disk, and the requests
in an input file.

Each is one file on disk, named by its id, in a folder of the owner's alone. It is there whole or
not at all: it is written under another name, flushed, and renamed. An id of which no content is
here is one that was deleted by hand."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from skep.files import write_whole
from skep.gateway.batch.store import BatchRequest
from skep.units import MIB, format_bytes, shortened

# Of the disk, for results, the store and everything else that is on it.
KEPT_FREE_BYTES = 512 * MIB
UNFINISHED_S = 3600.0  # after so long nobody writes to it any more
# A name without a row: an upload that was killed, or a store that may be brought back.
ORPHANED_S = 30 * 86_400.0
FILE_ID = re.compile(r"file-[0-9a-f]{24}")


def new_file_id() -> str:
    return f"file-{secrets.token_hex(12)}"


class FileStorage:
    """Every call blocks: for threads."""

    def __init__(self, folder: Path, *, kept_free_bytes: int = KEPT_FREE_BYTES) -> None:
        self.folder = folder
        self._kept_free_bytes = kept_free_bytes

    def path(self, file_id: str) -> Path:
        assert FILE_ID.fullmatch(file_id), file_id
        return self.folder / file_id

    def require_space(self, more_bytes: int) -> None:
        """Raise OSError unless the disk has room for so much and what is kept free for others."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        free_bytes = shutil.disk_usage(self.folder).free
        if free_bytes - more_bytes < self._kept_free_bytes:
            has = format_bytes(free_bytes)
            keeps = format_bytes(self._kept_free_bytes)
            message = (
                f"the disk has {has} free, and uploads leave {keeps}; delete files (`DELETE "
                "/v1/files/ID`)"
            )
            raise OSError(errno.ENOSPC, message)

    def write(self, file_id: str, pieces: Iterable[bytes | memoryview]) -> int:
        """Write a file, and return how many bytes it has. Raises OSError, and then leaves nothing
        behind.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return write_whole(self.path(file_id), pieces, 0o600)

    def read(self, file_id: str, start: int, length: int) -> bytes:
        with self.path(file_id).open("rb") as file:
            return os.pread(file.fileno(), length, start)

    def delete(self, file_id: str) -> None:
        with contextlib.suppress(OSError):
            self.path(file_id).unlink()

    def sweep(self, stored_ids: Iterable[str], now: float | None = None) -> None:
        """Remove what was left by processes that were killed: unfinished files, and very old ones
        that no row knows.
        """
        ids = set(stored_ids)
        now = time.time() if now is None else now
        with contextlib.suppress(FileNotFoundError):
            for path in self.folder.iterdir():
                if not FILE_ID.match(path.name.lstrip(".")) or path.name in ids:
                    continue
                if path.name.startswith("."):
                    kept_s = UNFINISHED_S
                else:
                    kept_s = ORPHANED_S
                with contextlib.suppress(OSError):
                    if now - path.stat().st_mtime > kept_s:
                        path.unlink()


# The form of an upload

MOST_PARTS = 64
_HEAD_BYTES = 16_384
_PIECE = 1_048_576


class FormPart(msgspec.Struct, frozen=True):
    name: str
    filename: str | None  # None: a plain field
    content: memoryview

    @property
    def text(self) -> str:
        return bytes(self.content).decode("utf-8", "replace")


def boundary_of(content_type: str) -> bytes | None:
    """Return the boundary of a multipart form; None: it is none."""
    headers = HeaderParser().parsestr(f"content-type: {content_type}")
    if headers.get_content_type() == "multipart/form-data":
        boundary = headers.get_boundary()
    else:
        boundary = None
    if boundary:
        return boundary.encode("latin-1", "replace")
    return None


def parts_of(body: bytes, boundary: bytes) -> list[FormPart]:
    """Return the parts of a form, in their order. Raises ValueError for what is no form, or not a
    whole one.
    """
    mark = b"\r\n--" + boundary
    view = memoryview(body)
    parts = list[FormPart]()
    if not body.startswith(mark[2:]):
        raise ValueError("the form does not begin with its boundary")
    begin = len(mark) - 2
    while body[begin : begin + 2] != b"--":
        if len(parts) == MOST_PARTS:
            raise ValueError(f"the form has more than {MOST_PARTS} parts")
        end = _find(body, mark, begin)
        end_of_head = body.find(b"\r\n\r\n", begin, begin + _HEAD_BYTES)
        if end < 0:
            raise ValueError("the form is cut off: its last boundary is missing")
        if not 0 <= end_of_head < end:
            raise ValueError("a part of the form has headers that do not end")
        name, filename = _names(body[begin + 2 : end_of_head])
        parts.append(FormPart(name, filename, view[end_of_head + 4 : end]))
        begin = end + len(mark)
    return parts


def _find(body: bytes, mark: bytes, start: int) -> int:
    """Return where the mark stands, or -1. Searches piece by piece: one search through a large
    file would keep every other thread waiting for its whole length.
    """
    for at in range(start, len(body), _PIECE):
        position = body.find(mark, at, at + _PIECE + len(mark) - 1)
        if position >= 0:
            return position
    return -1


def _names(head: bytes) -> tuple[str, str | None]:
    headers = HeaderParser().parsestr(head.decode("utf-8", "replace"))
    if "content-disposition" not in headers:
        raise ValueError("a part of the form has no Content-Disposition")
    name = headers.get_param("name", "", "content-disposition")
    filename = headers.get_filename()
    if filename is not None:  # as browsers write what would end it
        filename = filename.replace("%22", '"').replace("%0D", "\r").replace("%0A", "\n")
    return str(name), filename


# The requests of an input file

MOST_REQUESTS = 50_000
MOST_ERRORS = 100  # told of one file
LONGEST_ID = 512  # characters of a custom id
_BOM = b"\xef\xbb\xbf"


@dataclass(eq=False)
class LineError(Exception):
    """`line` None: it is about the file."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class CheckedInput(msgspec.Struct, frozen=True):
    """`requests` are to be sent only where there are no `faults`."""

    requests: tuple[BatchRequest, ...]
    model: str | None
    faults: tuple[LineError, ...]


class _BatchBody(msgspec.Struct):
    model: str | None = None
    stream: bool | None = None


class _BatchLine(msgspec.Struct):
    custom_id: Annotated[str, Meta(min_length=1, max_length=LONGEST_ID)]
    method: Annotated[str, Meta(pattern="^(?i:POST)$")]
    url: str
    body: _BatchBody


class _RawBody(msgspec.Struct):
    body: msgspec.Raw


_lines = msgspec.json.Decoder(_BatchLine)
_INVALID = {"custom_id": "invalid_custom_id", "method": "invalid_method"}


def check_lines(
    lines: Iterable[bytes],
    endpoint: str,
    complaint_of: Callable[[str | None], str | None],
    max_requests: int = MOST_REQUESTS,
) -> CheckedInput:
    """Return the requests of an input file, or what is wrong with it.

    `complaint_of`: why a model is not served.
    """
    check = _InputCheck(endpoint, complaint_of)
    requests: list[BatchRequest] = []
    faults: list[LineError] = []
    next_start = 0
    for number, line in enumerate(lines, start=1):
        start = next_start
        next_start += len(line)
        text = line.removeprefix(_BOM) if number == 1 else line
        if not text.strip():
            continue
        if len(requests) == max_requests:
            message = f"the file has more than {max_requests} requests"
            faults.append(LineError("too_many_tasks", message, line=number))
            break
        try:
            custom_id = check.custom_id_of(text, number)
        except LineError as error:
            # A copy: the error that was raised holds the line, and what was read of it.
            faults.append(LineError(error.code, error.message, error.param, number))
            if len(faults) == MOST_ERRORS:
                break
            continue
        skipped = len(line) - len(text)
        requests.append(BatchRequest(len(requests), custom_id, start + skipped, len(text)))
    if not requests and not faults:
        faults.append(LineError("empty_file", "the file has no requests"))
    return CheckedInput(tuple(requests), check.model, tuple(faults))


class _InputCheck:
    """What the lines of one input file have to agree on: one model, and ids that differ."""

    def __init__(self, endpoint: str, complaint_of: Callable[[str | None], str | None]) -> None:
        self.model: str | None = None  # of the first request
        self._endpoint = endpoint
        self._complaint_of = complaint_of
        self._line_of_id: dict[str, int] = {}

    def custom_id_of(self, text: bytes, number: int) -> str:
        """Return the id of a request that may be sent. Raises LineError for any other."""
        custom_id, model = _check(text, self._endpoint)
        if custom_id in self._line_of_id:
            first_line = self._line_of_id[custom_id]
            message = f"the custom_id {_short(custom_id)} is already used in line {first_line}"
            raise LineError("duplicate_custom_id", message, "custom_id")
        is_first = not self._line_of_id
        self._line_of_id[custom_id] = number
        if is_first:
            self.model = model
            complaint = self._complaint_of(model)
            if complaint is not None:
                raise LineError("model_not_found", complaint, "body.model")
        if model != self.model:
            others = f"({_short(self.model or 'none')}): one model a batch"
            message = (
                f"the model {_short(model or 'none')} is not that of the requests before {others}"
            )
            raise LineError("model_mismatch", message, "body.model")
        return custom_id


def body_of(line: bytes) -> bytes:
    """Return the request's body, byte for byte as it stands in a line that was checked.

    Raises ValueError where somebody has changed the line since.
    """
    try:
        return bytes(msgspec.json.decode(line, type=_RawBody).body)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None


def _check(text: bytes, endpoint: str) -> tuple[str, str | None]:
    """Return the id and the model of a line."""
    try:
        text.decode()  # what stands deeper in a body is not looked at below
        line = _lines.decode(text)
    except msgspec.ValidationError as error:
        field = next((name for name in _BatchLine.__struct_fields__ if name in str(error)), None)
        if "missing required" in str(error):
            code: str | None = "missing_required_parameter"
        else:
            code = _INVALID.get(field or "")
        raise LineError(code or "invalid_request", f"not a request: {error}", field) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LineError(
            "invalid_json_line", f"this line cannot be read as JSON: {error}"
        ) from None
    if line.url != endpoint:
        raise LineError(
            "url_mismatch", f"`url` is {_short(line.url)}; the batch is for {endpoint}", "url"
        )
    if line.body.stream:
        raise LineError(
            "invalid_request",
            "`stream` is not allowed in a batch: answers go into a file",
            "body.stream",
        )
    return line.custom_id, line.body.model


def _short(text: str) -> str:
    return f"`{shortened(text, 81)}`"
