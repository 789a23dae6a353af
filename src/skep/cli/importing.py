"""`skep bench import`: results of other tools become runs of the store."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path

from skep import __version__
from skep.bench.imports import Imported, imported_levels_json, read_import
from skep.bench.loaded import IMPORTED
from skep.cli.benching import text_of
from skep.cli.output import note, print_json
from skep.store.database import Store, open_store
from skep.store.rows import LevelFact


def run_import_command(store_path: Path, files: list[Path], label: str | None, *, as_json: bool) -> None:
    """All are read before any is stored."""
    read = [(file, read_import(text_of(file), file.name)) for file in files]
    with open_store(store_path) as store:
        stored = [(file, found, store_imported(store, file, found, label)) for file, found in read]
    if as_json:
        print_json(
            [
                {"run": run_id, "file": str(file), "tool": found.tool, "levels": len(found.levels)}
                for file, found, run_id in stored
            ]
        )
        return
    for file, found, run_id in stored:
        levels = ", ".join(str(level.concurrency) for level in found.levels)
        note(f"{file}: {found.tool}, {label or found.model or file.stem}, C={levels}: stored as run {run_id}")


def store_imported(store: Store, file: Path, found: Imported, label: str | None) -> str:
    run_id = store.begin_run(
        kind=IMPORTED,
        created_at=found.created_at or time.time(),
        model=label or found.model or file.stem,
        url=f"file:{file.name}",
        fingerprint=hashlib.sha256(repr(sorted(found.config.items())).encode()).hexdigest()[:16],
        config={**found.config, "tool": found.tool, "concurrency": [level.concurrency for level in found.levels]},
        host={},
        engine={"measured_by": found.tool},
        simulated=False,
        skep_version=__version__,
    )
    levels = imported_levels_json(found.levels)
    facts = [
        LevelFact(level.concurrency, 0, "summary", document)
        for level, document in zip(found.levels, levels, strict=True)
    ]
    store.append_level_facts(run_id, facts)
    store.append_requests(run_id, found.rows)
    store.end_run(run_id, time.time(), "done")
    return run_id
