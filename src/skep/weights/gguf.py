"""Reads and checks the header of a GGUF file, versions 2 and 3. Never touches the tensor data.

A file is not trusted: no length read from it is used before it is held against the bytes that are left, and the
number of steps that one header may cost is bounded.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from skep.errors import WeightsError
from skep.weights.ggml_types import tensor_bytes, type_name
from skep.weights.gguf_values import Damaged, Reader, SkippedArray
from skep.weights.looks import looks_like

__all__ = ["GgufHeader", "SkippedArray", "TensorInfo", "check_file", "read_header"]

MAGIC = b"GGUF"
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 18
_MAX_DIMENSIONS = 8
_MAX_FILE_BYTES = 1 << 50
_DEFAULT_ALIGNMENT = 32
_VERSIONS = (2, 3)
_CONVERT = "pull a file of GGUF version 3"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int  # from the start of the tensor data

    @property
    def type_name(self) -> str | None:
        return type_name(self.type_id)

    @property
    def size_bytes(self) -> int | None:
        return tensor_bytes(self.type_id, self.shape)


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """`expected_file_bytes` is None when a tensor has a type that is not known here."""

    version: int
    architecture: str | None
    name: str | None
    context_length: int | None
    alignment: int
    data_offset: int
    file_bytes: int
    expected_file_bytes: int | None
    metadata: Mapping[str, Any] = field(repr=False)  # arrays as tuples, large ones as SkippedArray
    tensors: tuple[TensorInfo, ...] = field(repr=False)


def read_header(path: Path, *, keep_arrays: bool = False) -> GgufHeader:
    """`keep_arrays=True` also reads arrays with more than 64 values, such as the vocabulary."""
    try:
        with _open_regular(path) as file:
            return _parse(file, keep_arrays=keep_arrays)
    except Damaged as error:
        raise WeightsError(f"`{path}` is not a usable GGUF: {error}", hint=error.hint) from None
    except OSError as error:
        raise WeightsError(f"cannot read `{path}`: {error.strerror or error}") from error


def check_file(path: Path) -> GgufHeader:
    """The header of a file that holds all bytes its tensors need."""
    header = read_header(path)
    needed = header.expected_file_bytes
    if needed is not None and header.file_bytes < needed:
        message = f"`{path}` is truncated: it has {header.file_bytes} bytes, its tensors need {needed}"
        raise WeightsError(message, hint="delete it and pull it again")
    return header


def _open_regular(path: Path) -> BinaryIO:
    """Opening a named pipe would wait for a writer, so the kind of file is asked for first."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise WeightsError(f"there is no file `{path}`", hint="check the path, or `skep pull smollm2-135m`") from None
    except ValueError as error:
        raise WeightsError(f"`{path!r}` is not a path: {error}") from None
    if stat.S_ISDIR(mode):
        hint = "name the .gguf file inside it"
        raise WeightsError(f"`{path}` is a folder, not a GGUF file", hint=hint)
    if not stat.S_ISREG(mode):
        raise WeightsError(f"`{path}` is not a regular file")
    return path.open("rb", buffering=1 << 18)


def _parse(file: BinaryIO, *, keep_arrays: bool) -> GgufHeader:
    size = os.fstat(file.fileno()).st_size
    start = file.read(512)
    if not start.startswith(MAGIC):
        what, hint = looks_like(start)
        raise Damaged(what, hint=hint)
    file.seek(len(MAGIC))
    reader = Reader(file, size, keep_arrays=keep_arrays)
    version = _version(reader.unsigned(4))
    tensor_count = reader.count("tensors", _MAX_TENSORS, bytes_each=24)
    key_count = reader.count("metadata keys", _MAX_KEYS, bytes_each=13)
    metadata = {reader.text(): reader.value() for _ in range(key_count)}
    tensors = tuple(_tensor(reader) for _ in range(tensor_count))
    return _header(version, metadata, tensors, reader.position, size)


def _header(
    version: int, metadata: dict[str, Any], tensors: tuple[TensorInfo, ...], header_end: int, size: int
) -> GgufHeader:
    alignment = _alignment(metadata)
    data_offset = -(-header_end // alignment) * alignment
    architecture = _typed(metadata, "general.architecture", str)
    return GgufHeader(
        version=version,
        architecture=architecture,
        name=_typed(metadata, "general.name", str),
        context_length=_typed(metadata, f"{architecture}.context_length", int),
        alignment=alignment,
        data_offset=data_offset,
        file_bytes=size,
        expected_file_bytes=_expected_bytes(tensors, header_end, data_offset),
        metadata=MappingProxyType(metadata),
        tensors=tensors,
    )


def _version(version: int) -> int:
    if version in _VERSIONS:
        return version
    if version == 1:
        raise Damaged("it is a GGUF of version 1, which engines no longer read", hint=_CONVERT)
    if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
        raise Damaged("it is a big-endian GGUF", hint=_CONVERT)
    raise Damaged(f"it is a GGUF of version {version}, known are 2 and 3", hint=_CONVERT)


def _tensor(reader: Reader) -> TensorInfo:
    name = reader.text()
    dimensions = reader.unsigned(4)
    if dimensions > _MAX_DIMENSIONS:
        raise Damaged(f"its header is damaged: tensor {name[:64]!r} has {dimensions} dimensions")
    shape = tuple(reader.unsigned(8) for _ in range(dimensions))
    return TensorInfo(name, shape, type_id=reader.unsigned(4), offset=reader.unsigned(8))


def _alignment(metadata: Mapping[str, Any]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if isinstance(alignment, int) and alignment > 0 and alignment & (alignment - 1) == 0:
        return int(alignment)
    raise Damaged(f"its header is damaged: the alignment is {repr(alignment)[:20]}, not a power of two")


def _expected_bytes(tensors: tuple[TensorInfo, ...], header_end: int, data_offset: int) -> int | None:
    end = header_end
    for tensor in tensors:
        size = tensor.size_bytes
        if size is None:
            return None
        end = max(end, data_offset + tensor.offset + size)
    if end > _MAX_FILE_BYTES:
        raise Damaged("its header is damaged: its tensors claim more than 1024 TiB")
    return end


def _typed(metadata: Mapping[str, Any], key: str, kind: type[Any]) -> Any:
    value = metadata.get(key)
    return value if type(value) is kind else None
