"""Configurations against concurrencies: each is measured, started first if need be, or taken from a stored run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shlex
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from skep.bench.endpoint import api_of
from skep.bench.metrics import SweepSummary
from skep.errors import EngineError, SkepError, UserError
from skep.files import open_log
from skep.host.power import gpu_memory_used, wait_until_clear
from skep.host.processes import MARK, kill_marked
from skep.units import format_bytes, parse_seconds
from skep.wire.client import WireFailure, fetch_once
from skep.wire.heads import parse_url
from skep.workload.items import Demand, field_faults, is_text

STOP_WITHIN_S = 20.0
CLEAR_WITHIN_S = 60.0
LOOK_EVERY_S = 0.25
LAST_LINES = 3
_TEXT: Demand = ("a text that is not blank", is_text)
_FIELDS: Mapping[str, Demand] = {
    **dict.fromkeys(("url", "model", "start", "run", "ready_within", "key_env"), _TEXT),
    "env": ('a table such as { CUDA_VISIBLE_DEVICES = "0" }', lambda value: isinstance(value, Mapping)),
}


class MatrixConfig(msgspec.Struct, frozen=True):
    """One row: an endpoint, a command that starts one, or a stored run."""

    name: str
    url: str | None = None
    model: str | None = None
    start: str | None = None
    run: str | None = None
    ready_within_s: float = 600.0
    key_env: str | None = None
    env: Mapping[str, str] = {}


class MatrixResult(msgspec.Struct, frozen=True):
    """Result of a configuration: its figures, or why there are none."""

    config: MatrixConfig
    summary: SweepSummary | None
    diagnosis: str | None = None
    boot_s: float | None = None  # from the start of the command to the first answer


Measure = Callable[[MatrixConfig], Awaitable[SweepSummary]]


def parse_matrix(document: Mapping[str, Any]) -> list[MatrixConfig]:
    entries = document.get("config")
    hint = 'write [[config]] with a name and a url, start or run, such as name = "2x GPU, NVLink"'
    if not isinstance(entries, list) or not entries:
        raise UserError("the matrix names no configuration", hint=hint)
    configs: list[MatrixConfig] = []
    for place, entry in enumerate(entries, start=1):
        if (fault := next(_faults(entry), None)) is not None:
            raise UserError(f"configuration {place}: {fault}", hint=hint)
        within_s = parse_seconds(entry.get("ready_within", "10m"))
        env = {str(key): str(value) for key, value in entry.get("env", {}).items()}
        texts = {key: value for key, value in entry.items() if key not in ("env", "ready_within")}
        if texts["name"] in (config.name for config in configs):
            raise UserError(f"two configurations are called `{texts['name']}`", hint="give each a name of its own")
        configs.append(MatrixConfig(**texts, ready_within_s=within_s, env=env))
    return configs


def _faults(entry: Any) -> Iterator[str]:
    if not isinstance(entry, Mapping):
        yield "it has no name"
        return
    yield from field_faults(entry, {"name": _TEXT}, _FIELDS)
    if ("run" in entry) == ("url" in entry):
        yield "it needs a url or a run, not both; start goes with a url"


async def run_matrix(
    configs: list[MatrixConfig], measure: Measure, load: Callable[[str], SweepSummary], folder: Path,
    say: Callable[[str], None],
) -> list[MatrixResult]:  # fmt: skip
    """Run the configurations one after the other. A failed one does not end the rest; Ctrl-C stops what was started."""
    cells: list[MatrixResult] = []
    baseline = gpu_memory_used()
    blocked: str | None = None  # what is measured on a GPU that is not clear would be wrong
    for config in configs:
        if blocked is not None and config.run is None:
            cells.append(MatrixResult(config, None, blocked))
            continue
        say(f"{config.name} ...")
        try:
            if config.run is not None:
                cell = MatrixResult(config, load(config.run))
            elif config.start is None:
                cell = MatrixResult(config, await measure(config))
            else:
                async with started(config, folder) as boot_s:
                    cell = MatrixResult(config, await measure(config), boot_s=boot_s)
        except SkepError as error:
            cell = MatrixResult(config, None, error.message)
            say(f"{config.name}: {error.message}")
        if config.start is not None and baseline is not None:
            held = await asyncio.to_thread(wait_until_clear, gpu_memory_used, baseline, CLEAR_WITHIN_S)
            if held:
                index, excess = next(iter(held.items()))
                holds = f"GPU {index} still holds {format_bytes(excess)} after `{config.name}` was stopped"
                blocked = f"not run: {holds}; `nvidia-smi` shows which process"
        cells.append(cell)
    return cells


@asynccontextmanager
async def started(config: MatrixConfig, folder: Path) -> AsyncIterator[float]:
    """The command runs while the block does; gives the seconds it took to answer. Its output goes to a file."""
    try:
        words = shlex.split(config.start or "")
    except ValueError as error:
        raise EngineError(f"`{config.start}` is not a command: {error}", hint="check its quotes") from None
    with contextlib.suppress(WireFailure):
        await fetch_once(parse_url(config.url or "", name="url")[0], "GET", "/", timeout_s=2.0)
        # the other server would be measured instead
        raise EngineError(f"a server already answers at {config.url} before the start", hint="stop it first")
    log = folder / f"{''.join(c if c.isalnum() else '-' for c in config.name)}.log"
    began, mark = time.monotonic(), f"matrix-{secrets.token_hex(8)}"
    with open_log(log, empty=True) as out:
        try:
            env = {**os.environ, **config.env, MARK: mark}
            process = await asyncio.create_subprocess_exec(
                *words, stdin=asyncio.subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True
            )
        except OSError as error:
            raise EngineError(f"`{config.start}` cannot be started: {error}", hint="check the command") from None
    try:
        await _until_ready(config, process, log, began)
        yield time.monotonic() - began
    finally:
        await _stop(process)
        await asyncio.to_thread(kill_marked, mark)  # workers that left the group hold the GPU's memory


async def _until_ready(config: MatrixConfig, process: asyncio.subprocess.Process, log: Path, began: float) -> None:
    origin, base, headers = api_of(config.url or "", os.environ.get(config.key_env or ""))
    while time.monotonic() - began < config.ready_within_s:
        if process.returncode is not None:
            raise EngineError(f"it ended with exit code {process.returncode}: {last_words(log)}", hint=f"see {log}")
        with contextlib.suppress(WireFailure):
            answer = await fetch_once(origin, "GET", f"{base}/models", headers=headers, timeout_s=2.0)
            if answer.status == 200:
                return
        await asyncio.sleep(LOOK_EVERY_S)
    hint = f"see {log}, or raise ready_within"
    raise EngineError(f"it did not answer within {config.ready_within_s:g} s: {last_words(log)}", hint=hint)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Stop the process and its group: SIGTERM, then SIGKILL."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_WITHIN_S):
                await process.wait()
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                return


def last_words(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-LAST_LINES:]) or "it wrote nothing"
