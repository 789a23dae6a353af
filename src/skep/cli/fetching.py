"""`skep pull`."""

from __future__ import annotations

import os

from skep.cli.output import byte_progress, note, print_json
from skep.settings import user_paths
from skep.units import format_bytes
from skep.weights.pull import pull


def pull_model(source: str, *, as_json: bool) -> None:
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


class _say_once:  # noqa: N801 - used like a function
    def __init__(self, text: str) -> None:
        self._text: str | None = text

    def __call__(self) -> None:
        if self._text is not None:
            note(self._text)
            self._text = None
