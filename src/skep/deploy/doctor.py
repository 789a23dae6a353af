"""What `skep doctor` finds: the host, engines, weights, the store, the sandbox and the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from skep.catalog.engines import EMBEDDED, installable_engines
from skep.catalog.gpus import HostFacts
from skep.catalog.models import pullable
from skep.config.settings import EMBEDDED_MODEL
from skep.engines.adapter import is_hybrid
from skep.engines.agent_checks import AgentCheck, CheckedEndpoint, check_for_agents
from skep.engines.base import engine_named
from skep.engines.install import EngineStatus, engine_status
from skep.errors import SkepError, UserError
from skep.host.checks import CheckResult, HostFinding, disk_finding, examine
from skep.host.facts import read_host, read_nvidia
from skep.paths import Paths
from skep.sandbox.runner import open_sandbox
from skep.store.database import open_store
from skep.units import format_bytes
from skep.weights.hub import hub_cache, hub_token
from skep.weights.pull import installed, model_path

OK = CheckResult.OK
ABSENT = CheckResult.ABSENT
WARNING = CheckResult.WARNING
PROBLEM = CheckResult.PROBLEM


def examine_here(paths: Paths) -> tuple[HostFacts, list[HostFinding]]:
    """Return what this machine is and what there is to say about it, in the order in which it is
    printed.
    """
    nvidia = read_nvidia()
    facts = read_host(nvidia)
    embedded = HostFinding(
        "embedded engine", WARNING, "not installed", "install skep again: xllamacpp is missing"
    )
    if (version := engine_named(EMBEDDED).version()) is not None:
        embedded = HostFinding("embedded engine", OK, version)
    ours = [
        embedded,
        weights_finding(paths),
        *engine_findings(cards=bool(facts.gpus)),
        hub_finding(),
    ]
    ours += [store_finding(paths), sandbox_finding(), _disk(paths)]
    return facts, [*examine(facts, nvidia_error=nvidia.error), *ours]


async def examine_server(
    url: str, model: str, engine: str, headers: Mapping[str, str], context_tokens: int | None
) -> list[HostFinding]:
    """Return what agents find there: whether their tool calls arrive, and whether a prompt is read
    only once.
    """
    endpoint = CheckedEndpoint(url, model, engine, headers, context_tokens, is_hybrid(model, None))
    return [_server_finding(check) for check in await check_for_agents(endpoint)]


def _server_finding(check: AgentCheck) -> HostFinding:
    verdict = {"ok": OK, "warning": PROBLEM, "unknown": WARNING}[check.state]
    if not check.answered:  # agents would get no answer either
        verdict = PROBLEM
    name, _, words = check.text.partition(": ")
    return HostFinding(name, verdict, words, check.hint)


def engine_findings(*, cards: bool) -> list[HostFinding]:
    """Return a line for each engine of others, and a warning where cards have none."""
    statuses = [engine_status(name) for name in installable_engines()]
    findings = [_engine_finding(status) for status in statuses]
    if cards and not any(status.path for status in statuses):
        hint = f"`{statuses[0].install}`, or another one of these"
        findings.insert(0, HostFinding("engine", WARNING, "none for these cards", hint))
    return findings


def _engine_finding(status: EngineStatus) -> HostFinding:
    if status.path is None:
        return HostFinding(status.engine, ABSENT, "not installed", f"`{status.install}`")
    where = f"{status.version or status.engine} at {_short(status.path)}"
    return HostFinding(status.engine, OK, where)


def hub_finding() -> HostFinding:
    """Return where checkpoints are fetched to, how much room is there, and whether gated ones can
    be had.
    """
    folder = hub_cache()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if hub_token(os.environ):
        token = "a token is set"  # noqa: S105 it is said of one
        hint = None
    else:
        token = "no token: gated models need one"  # noqa: S105 it is said of one
        hint = "`hf auth login`, or HF_TOKEN in the environment"
    return HostFinding(
        "hub cache",
        OK,
        f"{_short(folder)}, {format_bytes(shutil.disk_usage(existing).free)} free, {token}",
        hint,
    )


def weights_finding(paths: Paths) -> HostFinding:
    if (path := installed(EMBEDDED_MODEL, paths.cache)) is not None:
        return HostFinding("embedded weights", OK, str(path))
    damaged = model_path(pullable(EMBEDDED_MODEL), paths.cache)
    pull = f"`skep pull {EMBEDDED_MODEL}` fetches"
    if damaged.exists():
        return HostFinding(
            "embedded weights", WARNING, f"{damaged} is damaged or incomplete", f"{pull} it again"
        )
    return HostFinding(
        "embedded weights", OK, "not fetched yet", f"{pull} them; `skep up` does so too"
    )


def store_finding(paths: Paths) -> HostFinding:
    if not paths.store.exists():
        return HostFinding("store", OK, "no runs yet")
    try:
        with open_store(paths.store, read_only=True) as store:
            runs = len(store.runs())
            size = store.size_bytes()
    except SkepError as error:
        return HostFinding("store", PROBLEM, error.message, error.hint)
    return HostFinding("store", OK, f"{runs} runs, {format_bytes(size)} in {_short(paths.store)}")


def sandbox_finding() -> HostFinding:
    """Open a sandbox, try it out and close it: a quarter of a second.

    Without one, the finding is a warning: all but quality works.
    """
    try:
        sandbox = open_sandbox()
    except UserError as error:
        return HostFinding("sandbox", WARNING, error.message, error.hint)
    sandbox.close_now()
    return HostFinding(
        "sandbox",
        OK,
        f"model-written code runs in {sandbox.name}; a test script could not leave it",
    )


def _disk(paths: Paths) -> HostFinding:
    folder = paths.cache
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        hint = "set XDG_CACHE_HOME to a folder that you can write to"
        return HostFinding("disk", PROBLEM, f"skep cannot write below {folder}", hint)
    need = 0
    if not installed(EMBEDDED_MODEL, paths.cache):
        model = pullable(EMBEDDED_MODEL)
        need = model.wheel_bytes + model.gguf_bytes
    return disk_finding(str(_short(paths.cache)), shutil.disk_usage(folder).free, need)


def _short(path: Path) -> Path:
    home = Path.home()
    if path.is_relative_to(home):
        return Path("~") / path.relative_to(home)
    return path
