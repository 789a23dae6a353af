"""Brings checkpoints of the Hugging Face hub into the hub's own cache, where every engine looks for them."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from skep.errors import SkepError, UserError, WeightsError
from skep.units import GIB
from skep.weights import cache

_POLL_S = 0.2
_SPARE_BYTES = GIB  # of the disk, beside the files
_SOURCE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<file>[^:]+))?")
_FIRST_PART = re.compile(r"-00001-of-(\d{5})\.gguf$")
Progress = Callable[[int, int | None], None]
Files = Mapping[str, tuple[int, str | None]]  # bytes and SHA-256


class HubSource(msgspec.Struct, frozen=True):
    """A repository of the hub, or one GGUF file of it."""

    repo: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.repo}:{self.file}" if self.file else self.repo


class HubFiles(msgspec.Struct, frozen=True):
    """Where it lies: a folder, or the file that was named."""

    path: Path
    bytes: int
    already_there: bool


def parse_hub_source(source: str) -> HubSource | None:
    """`organisation/name`, or `organisation/name:FILE.gguf`."""
    match = _SOURCE.fullmatch(source.strip())
    return HubSource(match["repo"], match["file"] or "") if match else None


def hub_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that all programs of the hub share."""
    home = environ.get("HF_HOME") or Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    return Path(environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def hub_token(environ: Mapping[str, str]) -> bool:
    """Whether gated repositories can be asked for: by a variable, or by what `hf auth login` wrote."""
    return bool(environ.get("HF_TOKEN")) or (hub_cache(environ).parent / "token").is_file()


def cached(source: HubSource) -> HubFiles | None:
    """Return what is there and whole. Asks nobody."""
    folder = _repo_folder(source)
    try:
        snapshot = folder / "snapshots" / (folder / "refs" / "main").read_text(encoding="utf-8").strip()
        names = _needed(snapshot, source.file)
        sizes = [(snapshot / name).stat().st_size for name in names]  # through links: a missing file is told
    except (OSError, ValueError):
        return None
    return HubFiles(snapshot / source.file, sum(sizes), already_there=True) if names else None


def _needed(snapshot: Path, file: str) -> list[str]:
    """Return the weight files that must be there. Raises OSError or ValueError where that cannot be told."""
    if file:
        parts = _FIRST_PART.search(file)
        count = int(parts[1]) if parts else 1
        return [file] + [_FIRST_PART.sub(f"-{n:05}-of-{count:05}.gguf", file) for n in range(2, count + 1)]
    index = snapshot / "model.safetensors.index.json"
    if index.exists():
        return ["config.json", *sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))]
    weights = [path.name for path in snapshot.glob("*.safetensors")] or [path.name for path in snapshot.glob("*.bin")]
    config = "config.json" if (snapshot / "config.json").exists() else "params.json"
    return [config, *weights] if weights else []


def pull_hub(source: HubSource, progress: Progress = lambda _done, _total: None) -> HubFiles:
    """Fetch what is missing, go on with what was begun, hold it against the hub's checksums."""
    there = cached(source)
    if there is not None:
        return there
    with _client(source) as child:
        told = _hear(child, source)
        files: Files = {name: (size or 0, sha) for name, (size, sha) in told["files"].items()}
        if not files:
            hint = "look at the files of the model's page for the .gguf names"
            raise UserError(f"`{source.repo}` has no file `{source.file}`", hint=hint)
        total, blobs = sum(size for size, _ in files.values()), _repo_folder(source) / "blobs"
        with cache.write_errors(hub_cache(), total):
            hub_cache().mkdir(parents=True, exist_ok=True)
            cache.need_space(hub_cache(), total - _there(blobs) + _SPARE_BYTES)
        assert child.stdin is not None
        child.stdin.write(b"go\n")
        child.stdin.flush()
        while child.poll() is None:
            progress(min(_there(blobs), total), total)
            with suppress(subprocess.TimeoutExpired):
                child.wait(timeout=_POLL_S)
        folder = Path(_hear(child, source)["folder"])
    _check(folder, files)
    progress(total, total)
    return HubFiles(folder / source.file, total, already_there=False)


def _check(folder: Path, files: Files) -> None:
    """Remove a file that is not what the hub says it is."""
    for name, (_, want) in files.items():
        path = (folder / name).resolve()
        if want is not None and (have := cache.file_sha256(path)) != want:
            path.unlink(missing_ok=True)
            (folder / name).unlink(missing_ok=True)
            hint = "pull again; if it stays wrong, its source serves another file"
            raise WeightsError(f"checksum mismatch: {name} has SHA-256 {have[:12]}…, expected {want[:12]}…", hint=hint)


@contextmanager
def _client(source: HubSource) -> Iterator[subprocess.Popen[bytes]]:
    """In a session of its own: Ctrl-C reaches skep alone, which then ends it. What it has fetched stays."""
    argv = [sys.executable, "-P", "-m", "skep.weights.hub_client", source.repo, source.file]
    child = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def _hear(child: subprocess.Popen[bytes], source: HubSource) -> dict[str, Any]:
    assert child.stdout is not None
    line = child.stdout.readline()
    told: dict[str, Any] = json.loads(line) if line else {"error": ["nothing"], "why": "the hub's client ended early"}
    if "error" in told:
        raise _meaning(set(told["error"]), told.get("why", ""), told.get("errno"), source)
    return told


def _meaning(names: set[str], why: str, number: int | None, source: HubSource) -> SkepError:
    """Classes are told by name: they moved between modules from one release to the next."""
    page = f"https://huggingface.co/{source.repo}"
    if "GatedRepoError" in names:
        hint = f"accept the licence on {page}, then `hf auth login`, or HF_TOKEN in the environment"
        return UserError(f"`{source.repo}` is gated: its owner asks you to accept a licence first", hint=hint)
    if "RepositoryNotFoundError" in names:
        hint = "check the spelling; a private one needs `hf auth login`, or HF_TOKEN in the environment"
        return UserError(f"the hub has no `{source.repo}`, or it is private", hint=hint)
    if "HFValidationError" in names:
        return UserError(f"`{source}` is not a name the hub knows: {why}")
    if number in (errno.ENOSPC, errno.EDQUOT):
        return cache.no_space(hub_cache(), "the disk is full; what is there stays, and the next pull goes on with it")
    if names & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "ConnectionError", "ConnectError", "TransportError"}:
        hint = "connect once, or bring the files from elsewhere: `skep up MODEL --checkpoint FOLDER`"
        return WeightsError(f"cannot reach the hub, and `{source}` is not in its cache", hint=hint)
    return WeightsError(f"cannot pull `{source}`: {why}", hint="what was fetched stays; `skep pull` goes on with it")


def _repo_folder(source: HubSource) -> Path:
    return hub_cache() / f"models--{source.repo.replace('/', '--')}"


def _there(blobs: Path) -> int:
    """Return the bytes of the repository that are there, begun files included."""
    total = 0
    with suppress(OSError):
        for path in blobs.iterdir():
            with suppress(OSError):
                total += path.stat().st_size
    return total
