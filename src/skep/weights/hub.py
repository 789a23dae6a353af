"""Files from the Hugging Face hub, through its own client and its own cache. The client is an optional extra."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skep.errors import SkepError, UserError, WeightsError

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
    """The file, and whether it lay in the hub's cache already. Asks the network only when it does not."""
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
