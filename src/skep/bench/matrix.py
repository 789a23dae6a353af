"""Configurations against concurrencies: each is measured, started first if need be, or taken from a stored run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shlex
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from skep.bench.records import SweepSummary
from skep.errors import EngineError, SkepError, UserError
from skep.files import open_log
from skep.host.power import gpu_memory_used, wait_until_clear
from skep.host.processes import MARK, kill_marked
from skep.units import format_bytes, parse_seconds
from skep.wire.client import WireFailure
from skep.wire.fetch import fetch_once
from skep.wire.heads import parse_url

STOP_WITHIN_S = 20.0
CLEAR_WITHIN_S = 60.0
LOOK_EVERY_S = 0.25
LAST_LINES = 3
_FIELDS = ("name", "url", "model", "start", "run", "ready_within", "key_env", "env")


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
    if not isinstance(entries, list) or not entries:
        hint = "write [[config]] with a name and a url, start or run"
        raise UserError("the matrix names no configuration", hint=hint)
    configs = [_config(place, entry) for place, entry in enumerate(entries, start=1)]
    names = [config.name for config in configs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"two configurations are called `{twice}`", hint="give each a name of its own")
    return configs


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
    origin, path = parse_url(config.url or "", name="url")
    base = path if path.endswith("/v1") else f"{path}/v1"
    key = os.environ.get(config.key_env or "")
    headers = {"authorization": f"Bearer {key}"} if key else {}
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


def _config(place: int, entry: Any) -> MatrixConfig:
    if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str) or not entry["name"]:
        raise UserError(f"configuration {place} has no name", hint='write name = "2x GPU, NVLink"')
    whose, env = f"configuration `{entry['name']}`", entry.get("env", {})
    unknown = next((key for key in entry if key not in _FIELDS), None)
    if unknown is not None:
        raise UserError(f"{whose}: `{unknown}` is not known", hint=f"known: {', '.join(_FIELDS)}")
    wrong = next((key for key in _FIELDS if key != "env" and not isinstance(entry.get(key, ""), str)), None)
    if wrong is not None:
        raise UserError(f"{whose}: `{wrong}` is not a string", hint="put it in quotes")
    if not isinstance(env, Mapping):
        raise UserError(f"{whose}: `env` is not a table", hint='write env = { CUDA_VISIBLE_DEVICES = "0" }')
    if ("run" in entry) == ("url" in entry):
        raise UserError(f"{whose} needs a url or a run, not both", hint="start goes with a url")
    if "start" in entry and not entry["start"].strip():
        raise UserError(f"{whose}: `start` is empty", hint="give it a command, or leave it out")
    ready_within_s = parse_seconds(entry.get("ready_within", "10m"))
    texts = {key: entry[key] for key in entry if key not in ("env", "ready_within")}
    return MatrixConfig(**texts, ready_within_s=ready_within_s, env={str(key): str(env[key]) for key in env})
