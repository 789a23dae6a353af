"""Brings checkpoints of the Hugging Face hub into the hub's own cache, where every engine looks
for them.
"""

from __future__ import annotations

import errno
import fcntl
import fnmatch
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from skep.errors import SkepError, UserError, WeightsError
from skep.units import GIB, one_line
from skep.weights import cache

OTHER_ENGINES = ("*.gguf", "*.onnx", "*.h5", "*.msgpack")
OTHER_WEIGHTS = (*OTHER_ENGINES, "*.bin", "*.pt", "*.pth", "original/*", "consolidated*")
AT_ONCE = 4  # files
_POLL_S = 0.2
_SPARE_BYTES = GIB  # of the disk, beside the files
_SOURCE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?::(?P<file>[^:]+))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_FIRST_PART = re.compile(r"-00001-of-(\d{5})\.gguf$")
Progress = Callable[[int, int | None], None]
Files = Mapping[str, tuple[int, str | None]]  # bytes and SHA-256


class HubSource(msgspec.Struct, frozen=True):
    """A repository of the hub, or one GGUF file of it."""

    repo: str
    file: str = ""

    def __str__(self) -> str:
        if self.file:
            return f"{self.repo}:{self.file}"
        return self.repo


class HubFiles(msgspec.Struct, frozen=True):
    """Where a checkpoint lies: a folder, or the file that was named."""

    path: Path
    bytes: int
    already_there: bool


def parse_hub_source(source: str) -> HubSource | None:
    """Parse `organisation/name` or `organisation/name:FILE.gguf`; None: it is neither."""
    match = _SOURCE.fullmatch(source.strip())
    if match:
        return HubSource(match["repo"], match["file"] or "")
    return None


def hub_cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that all programs of the hub share."""
    home = (
        environ.get("HF_HOME")
        or Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "huggingface"
    )
    return Path(environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()


def hub_token(environ: Mapping[str, str]) -> bool:
    """Return whether gated repositories can be asked for: a variable or a file has a token."""
    return bool(environ.get("HF_TOKEN")) or (hub_cache(environ).parent / "token").is_file()


def cached(source: HubSource) -> HubFiles | None:
    """Return a checkpoint of the cache; None: it is not there, or not whole. Asks no server."""
    folder = _repo_folder(source)
    try:
        if source.file and not is_inside(source.file):
            return None
        snapshot = (
            folder / "snapshots" / (folder / "refs" / "main").read_text(encoding="utf-8").strip()
        )
        names = _needed(snapshot, source.file)
        # Through links: a missing file is told.
        sizes = [(snapshot / name).stat().st_size for name in names]
    except (OSError, ValueError):
        return None
    if names:
        return HubFiles(snapshot / source.file, sum(sizes), already_there=True)
    return None


def _needed(snapshot: Path, file: str) -> list[str]:
    """Return the files that must be there; raise OSError or ValueError where it is not known."""
    if file:
        return gguf_parts(file)
    index = snapshot / "model.safetensors.index.json"
    if index.exists():
        return ["config.json", *_indexed(index.read_text(encoding="utf-8"))]
    weights = [path.name for path in snapshot.glob("*.safetensors")] or [
        path.name for path in snapshot.glob("*.bin")
    ]
    if not weights:
        return []
    has_config = (snapshot / "config.json").exists()
    return ["config.json" if has_config else "params.json", *weights]


def _indexed(index: str) -> list[str]:
    """Return the weight files that an index names. Raise ValueError where it is none."""
    try:
        names = set(json.loads(index)["weight_map"].values())
        check_names(names)
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(f"the index names no weights: {error}") from None
    return sorted(names)


def gguf_parts(name: str) -> list[str]:
    """Return the file, and the others where it is the first of several."""
    first = _FIRST_PART.search(name)
    count = int(first[1]) if first else 1
    return [name] + [
        _FIRST_PART.sub(f"-{n:05}-of-{count:05}.gguf", name) for n in range(2, count + 1)
    ]


def pull_hub(source: HubSource, progress: Progress = lambda _done, _total: None) -> HubFiles:
    """Fetch what is missing, go on with what was begun, hold it against the hub's checksums."""
    files_there = cached(source)
    if files_there is not None:
        return files_there
    with _client(source) as child:
        listing = _hear(child, source)
        files: Files = {name: (size or 0, sha) for name, (size, sha) in listing["files"].items()}
        if not files:
            hint = "look at the files of the model's page for the .gguf names"
            raise UserError(f"`{source.repo}` has no file `{source.file}`", hint=hint)
        total = sum(size for size, _ in files.values())
        blobs = _repo_folder(source) / "blobs"
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
            raise WeightsError(
                f"checksum mismatch: {name} has SHA-256 {have[:12]}…, expected {want[:12]}…",
                hint=hint,
            )


@contextmanager
def _client(source: HubSource) -> Iterator[subprocess.Popen[bytes]]:
    """Run the hub's client while the block runs, in a session of its own: Ctrl-C reaches skep
    alone, which then ends it. What it has fetched stays.
    """
    argv = [sys.executable, "-P", "-m", "skep.weights.hub", source.repo, source.file]
    child = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
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
    report: dict[str, Any] = (
        json.loads(line) if line else {"error": ["nothing"], "why": "the hub's client ended early"}
    )
    if "error" in report:
        raise _meaning(set(report["error"]), report.get("why", ""), report.get("errno"), source)
    return report


def _meaning(names: set[str], why: str, number: int | None, source: HubSource) -> SkepError:
    """Return the error that the client's exception stands for.

    `names`: of its classes, which move between modules from one release to the next.
    """
    page = f"https://huggingface.co/{source.repo}"
    if "GatedRepoError" in names:
        hint = (
            f"accept the licence on {page}, then `hf auth login`, or HF_TOKEN in the environment"
        )
        return UserError(
            f"`{source.repo}` is gated: its owner asks you to accept a licence first", hint=hint
        )
    if "RepositoryNotFoundError" in names:
        hint = (
            "check the spelling; a private one needs `hf auth login`, or HF_TOKEN in the "
            "environment"
        )
        return UserError(f"the hub has no `{source.repo}`, or it is private", hint=hint)
    if "HFValidationError" in names:
        return UserError(f"`{source}` is not a name the hub knows: {why}")
    if number in (errno.ENOSPC, errno.EDQUOT):
        return cache.no_space(
            hub_cache(), "the disk is full; what is there stays, and the next pull goes on with it"
        )
    if names & {
        "LocalEntryNotFoundError",
        "OfflineModeIsEnabled",
        "ConnectionError",
        "ConnectError",
        "TransportError",
    }:
        hint = (
            "connect this machine to the internet once, or copy the files here: `skep up MODEL "
            "--checkpoint FOLDER`"
        )
        return WeightsError(f"cannot reach the hub, and `{source}` is not in its cache", hint=hint)
    return WeightsError(
        f"cannot pull `{source}`: {why}",
        hint="what was fetched stays; `skep pull` goes on with it",
    )


def _repo_folder(source: HubSource) -> Path:
    return hub_cache() / f"models--{source.repo.replace('/', '--')}"


def _there(blobs: Path) -> int:
    """Return the bytes of the repository on this disk, begun files included."""
    total = 0
    with suppress(OSError):
        for path in blobs.iterdir():
            with suppress(OSError):
                total += path.stat().st_size
    return total


# The hub's own client, in a process of its own: `python -m skep.weights.hub REPO [FILE]`. It
# writes a JSON line with the files and their sizes, waits for a line on its standard input,
# fetches them into the hub's cache, and writes where they are. Ended at any moment it leaves what
# the next one goes on with.


def wanted_files(names: list[str], file: str) -> list[str]:
    """Return the file with all its parts; without a file, what an engine reads."""
    if file:
        parts = _FIRST_PART.sub(r"-*-of-\1.gguf", file)
        return [name for name in names if fnmatch.fnmatch(name, parts)]
    # The same weights in an older form are taken only where there are no others.
    for left_out in (OTHER_WEIGHTS, OTHER_ENGINES):
        needed = [
            name
            for name in names
            if not any(fnmatch.fnmatch(name, pattern) for pattern in left_out)
        ]
        if any(name.endswith(".safetensors") for name in needed):
            break
    return needed


def main(repo: str, file: str = "") -> int:
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    try:
        from huggingface_hub import HfApi, constants, hf_hub_url

        info = HfApi().model_info(repo, files_metadata=True)
        siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
        commit = checked_commit(info.sha)
        files = {name: facts_of(siblings[name]) for name in wanted_files(list(siblings), file)}
        check_names(files)
        say(files=files)
        if not sys.stdin.readline().strip():
            return 0
        threading.Thread(target=end_with_parent, daemon=True).start()
        folder = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
        urls = {name: hf_hub_url(repo, name, revision=commit) for name in files}
        with ThreadPoolExecutor(AT_ONCE) as pool:
            blobs = pool.map(
                lambda name: fetch(urls[name], folder / "blobs", files[name][1]), files
            )
            say(folder=str(link_snapshot(folder, commit, dict(zip(files, blobs, strict=True)))))
    except Exception as error:
        why = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        say(
            error=[cls.__name__ for cls in type(error).__mro__],
            why=why,
            errno=getattr(error, "errno", None),
        )
        return 1
    return 0


def facts_of(sibling: Any) -> tuple[int | None, str | None]:
    """Return the size and the SHA-256 that the hub lists for a file.

    None: it does not say, or nothing sound.
    """
    size = sibling.size
    sha256 = getattr(sibling.lfs, "sha256", None)
    is_size = type(size) is int and size >= 0
    is_sha256 = isinstance(sha256, str) and _SHA256.fullmatch(sha256) is not None
    return (size if is_size else None), (sha256 if is_sha256 else None)


def checked_commit(commit: str | None) -> str:
    """Return the revision, which names a folder. Raise ValueError where it is none."""
    if commit is None or _COMMIT.fullmatch(commit) is None:
        raise ValueError(
            f"the hub names `{one_line(str(commit), 60)}` as the revision, which is none"
        )
    return commit


def check_names(names: Iterable[str]) -> None:
    """Raise ValueError where a name in the hub's list would lie outside of its folder."""
    for name in names:
        if not is_inside(name):
            raise ValueError(
                f"the hub lists the file `{one_line(name, 60)}`, which would lie elsewhere"
            )


def is_inside(name: str) -> bool:
    """Return whether a name of a remote list is a plain path below the folder it is for."""
    parts = name.split("/")
    return (
        name.isprintable()
        and "\\" not in name
        and not any(part in ("", ".", "..") for part in parts)
    )


def blob_name(etag: str, sha256: str | None) -> str:
    """Return the name of a file's content in the cache.

    An ETag may be any text: a mirror chooses it.
    """
    if _BLOB.fullmatch(etag):
        return etag
    return sha256 or hashlib.sha256(etag.encode("utf-8", "surrogatepass")).hexdigest()


def link_snapshot(folder: Path, commit: str, blobs: Mapping[str, Path]) -> Path:
    """Make the snapshot of a commit as the hub's own client does: links to contents.

    Return its folder.
    """
    snapshot = folder / "snapshots" / commit
    for name, blob in blobs.items():
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        beside = link.with_name(f".{link.name}.{os.getpid()}")
        beside.unlink(missing_ok=True)
        beside.symlink_to(os.path.relpath(blob, link.parent))
        beside.replace(link)
    main = folder / "refs" / "main"
    main.parent.mkdir(parents=True, exist_ok=True)
    main.write_text(commit, encoding="utf-8")
    return snapshot


def fetch(url: str, blobs: Path, sha256: str | None) -> Path:
    """Fetch a file into the cache, or the rest of one that was begun and has a checksum.

    Return where its content lies.
    """
    from huggingface_hub import get_hf_file_metadata
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    about = get_hf_file_metadata(url)
    if about.etag is None:
        raise ValueError("the hub gives a file no ETag")
    blob = blobs / blob_name(about.etag, sha256)
    if blob.exists():
        return blob
    blobs.mkdir(parents=True, exist_ok=True)
    part = blobs / f"{blob.name}.part"
    with part.open("ab") as file:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX)
        if blob.exists():  # another process was quicker
            part.unlink(missing_ok=True)
            return blob
        headers = build_hf_headers()
        if sha256 is None:  # nobody would notice that its beginning and its end are of two files
            file.truncate(0)
            headers["if-range"] = f'"{about.etag}"'  # of the client's own retries
        http_get(
            url, file, resume_size=part.stat().st_size, headers=headers, expected_size=about.size
        )
        part.replace(blob)
    return blob


def end_with_parent() -> None:
    """End this process when its parent ends: however it does, its end of the pipe is closed."""
    sys.stdin.read()
    os._exit(1)


def say(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
