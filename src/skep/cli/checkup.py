"""`skep doctor`."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from skep.catalog.pullable import pullable
from skep.cli.output import print_json
from skep.engines.base import engine_named
from skep.errors import SkepError, UserError
from skep.host.checks import disk_finding, examine
from skep.host.facts import host_json, read_host
from skep.host.nvidia import read_nvidia
from skep.places import Paths, user_paths
from skep.records import Finding, Verdict
from skep.sandbox.detect import open_sandbox
from skep.settings import EMBEDDED_MODEL
from skep.store.database import open_store
from skep.units import format_bytes
from skep.weights.pull import installed, model_path

MARKS = {Verdict.OK: "ok", Verdict.WARNING: "warning", Verdict.PROBLEM: "problem"}
COLOURS = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.PROBLEM: "red"}


def run_doctor(*, as_json: bool) -> int:
    paths = user_paths(os.environ)
    nvidia = read_nvidia()
    facts = read_host(nvidia)
    findings = [
        *examine(facts, nvidia_error=nvidia.error),
        embedded_finding(),
        weights_finding(paths),
        store_finding(paths),
        sandbox_finding(),
        _disk(paths),
    ]
    if as_json:
        print_json({"findings": [_finding_json(finding) for finding in findings], "host": host_json(facts)})
    else:
        _print(findings)
    return 1 if any(finding.verdict is Verdict.PROBLEM for finding in findings) else 0


def embedded_finding() -> Finding:
    version = engine_named("embedded").version()
    if version is None:
        hint = "run `pip install 'skep[embedded]'`"
        return Finding("embedded engine", Verdict.WARNING, "not installed", hint)
    return Finding("embedded engine", Verdict.OK, version)


def weights_finding(paths: Paths) -> Finding:
    path = installed(EMBEDDED_MODEL, paths.cache)
    if path is None:
        damaged = model_path(pullable(EMBEDDED_MODEL), paths.cache)
        if damaged.exists():
            hint = f"`skep pull {EMBEDDED_MODEL}` fetches it again"
            return Finding("embedded weights", Verdict.WARNING, f"{damaged} is not the file it should be", hint)
        hint = f"`skep pull {EMBEDDED_MODEL}` fetches them; `skep up` does so by itself"
        return Finding("embedded weights", Verdict.OK, "not fetched yet", hint)
    return Finding("embedded weights", Verdict.OK, str(path))


def store_finding(paths: Paths) -> Finding:
    if not paths.store.exists():
        return Finding("store", Verdict.OK, "no runs yet")
    try:
        with open_store(paths.store, read_only=True) as store:
            runs, size = len(store.runs()), store.size_bytes()
    except SkepError as error:
        return Finding("store", Verdict.PROBLEM, error.message, error.hint)
    return Finding("store", Verdict.OK, f"{runs} runs, {format_bytes(size)} in {_short(paths.store)}")


def sandbox_finding() -> Finding:
    """Opens one, tries it out and closes it: a quarter of a second. A warning, as all but quality works without it."""
    try:
        sandbox = open_sandbox()
    except UserError as error:
        return Finding("sandbox", Verdict.WARNING, error.message, error.hint)
    sandbox.close_now()
    return Finding("sandbox", Verdict.OK, f"model-written code is run in {sandbox.name}; a trial in it was kept in")


def _disk(paths: Paths) -> Finding:
    folder = paths.cache
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        hint = "set XDG_CACHE_HOME to a folder of yours"
        return Finding("disk", Verdict.PROBLEM, f"nothing can be written below {folder}", hint)
    model = pullable(EMBEDDED_MODEL)
    need = 0 if installed(EMBEDDED_MODEL, paths.cache) else model.wheel_bytes + model.gguf_bytes
    return disk_finding(str(_short(paths.cache)), shutil.disk_usage(folder).free, need)


def _short(path: Path) -> Path:
    home = Path.home()
    return Path("~") / path.relative_to(home) if path.is_relative_to(home) else path


def _finding_json(finding: Finding) -> dict[str, Any]:
    return {**asdict(finding), "verdict": finding.verdict.value}


def _print(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        mark = Text(f"{MARKS[finding.verdict]:8}", style=COLOURS[finding.verdict])
        console.print(mark + Text(f"{finding.check:{width}}  {finding.detail}"))
        if finding.hint:
            console.print(Text(f"{'':8}{'':{width}}  → {finding.hint}", style="dim"))
