"""The work of `skep demo`, `doctor`, `pull`, `store` and `gc`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from skep.catalog.models import find_geometry
from skep.catalog.pullable import find_pullable
from skep.cli.options import EndpointOptions, existing
from skep.config.settings import EMBEDDED_MODEL, GatewaySettings, Serve, Settings
from skep.errors import EndpointError
from skep.files import write_whole
from skep.host.checks import CheckResult, HostFinding
from skep.host.facts import host_json, read_host
from skep.paths import Paths, user_paths
from skep.report.terminal import byte_progress, check_output, note, print_json
from skep.store.database import Store, open_store
from skep.store.records import EngineTimings, Request, RunState
from skep.supervisor.control import NotRunning, ask_down, replica_key
from skep.swarm.journal import as_it_stands, lock_path
from skep.swarm.records import SwarmRunState
from skep.swarm.store import SwarmStore
from skep.tuner.store import TuningState, TuningStore
from skep.units import format_bytes, format_seconds, milliseconds, number, parse_seconds, times

if TYPE_CHECKING:
    from skep.bench.endpoint import Endpoint
    from skep.bench.records import LevelSummary, SweepSummary

HUMANEVAL = "humaneval"
DEMO_QUESTION = "What is a GPU? Answer in one sentence."
DEMO_MODEL, DEMO_PRESET = "qwen3.6-27b", "qwen3.6-27b-2x3090-replicas"  # of the simulated rig; its published figures
DEMO_LEVELS = {4: 16, 8: 24, 16: 32}  # agents, and their tasks
DEMO_TOKENS = 1024  # in and out, as published
DEMO_TASKS = 20  # of the swarm
DEMO_SCALE = 0.05  # seconds here for one of the simulated rig
COLOURS = {CheckResult.OK: "green", CheckResult.WARNING: "yellow", CheckResult.PROBLEM: "red"}


def pull_model(source: str, *, as_json: bool) -> None:
    from skep.quality.banks import pull_humaneval
    from skep.weights.pull import pull

    fetch = pull_humaneval if source == HUMANEVAL else pull  # the bank of tasks; fetched with the first use as well
    if (
        source != HUMANEVAL
        and "/" not in source
        and find_pullable(source) is None
        and find_geometry(source) is not None
    ):
        from skep.deploy.resolve import checkpoint_to_pull

        source = checkpoint_to_pull(source, user_paths(os.environ))
    said: list[str] = []

    def waiting() -> None:
        if not said:
            said.append("another process is fetching it; waiting")
            note(*said)

    with byte_progress(f"fetching {source}") as progress:
        found = fetch(source, cache_dir=user_paths(os.environ).cache, progress=progress, waiting=waiting)
    if as_json:
        print_json({**msgspec.structs.asdict(found), "path": str(found.path)})
        return
    how = "is there already" if found.already_there else "fetched and checked"
    note(f"{found.name} {how}: {format_bytes(found.bytes)}")
    print(found.path)  # noqa: T201


def run_demo(output: Path) -> None:
    """Serve in folders of its own, so that a running skep is not disturbed; runs go to the user's store."""
    from skep.cli.bench_common import run_measuring
    from skep.supervisor.detached import start_detached

    check_output(output)
    began = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="skep-demo-"))
    env = {**os.environ, "XDG_STATE_HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    paths, gateway = user_paths(env), GatewaySettings(port=0, store_requests=False)
    extra = ("--preset=dual-3090", f"--time-scale={DEMO_SCALE}", "--stream-form=several-tokens")
    rig = Serve(model=DEMO_MODEL, engine="fake", replicas=2, slots=2, context_tokens=4096, extra=extra)
    settings = Settings(gateway=gateway, serve=(Serve(slots=1), rig))
    alive_read, _alive_write = os.pipe()  # ends with this process, however it ends; the hive ends with it
    try:
        note(f"1/4 starting the gateway, {EMBEDDED_MODEL} (a real model, on the CPU) and a SIMULATED 2x RTX 3090")
        with byte_progress("fetching the weights") as progress:
            hear = lambda told: progress(told["done"], told["total"]) if "done" in told else None  # noqa: E731
            ready = start_detached(settings, paths, env, hear, parent_fd=alive_read)
        engines = [row["url"] for row in ready["replicas"] if row["simulated"]]
        key = replica_key(engines[0], paths)
        write_whole(output, run_measuring(lambda: _demonstrate(ready["url"], engines, key, output)))
    finally:
        with contextlib.suppress(NotRunning):
            ask_down(paths.socket, 0.0)
        shutil.rmtree(folder, ignore_errors=True)
    cards = "" if read_host().gpus else ' --gpu "2x rtx-3090"'
    note(
        f"done in {format_seconds(time.monotonic() - began)}; nothing is left running",
        f"next, for your own cards: `skep plan {DEMO_MODEL}{cards}`, then `skep up {DEMO_MODEL} -d`",
        "dashboard of the SIMULATED runs: `skep web --open`, at http://127.0.0.1:8401",
        "report of the SIMULATED runs, with pictures, for a browser:",
    )
    print(output.resolve())  # noqa: T201


async def _demonstrate(url: str, engines: Sequence[str], key: str | None, output: Path) -> str:
    """Return the report: the same simulated engines without a gateway and behind skep's."""
    from skep.bench.endpoint import find_endpoint
    from skep.config.presets import shipped_presets
    from skep.report.comparison import comparison_page, comparison_picture

    say = partial(print, flush=True)
    note("2/4 one question to the real model")
    await _ask_one_question(await EndpointOptions(url=url, model=EMBEDDED_MODEL).find())
    gateway = await EndpointOptions(url=url, model=DEMO_MODEL).find()
    direct = [replace(await find_endpoint(one, None, key=key), engine=gateway.engine) for one in engines]
    published = {one.concurrency: one for one in shipped_presets()[DEMO_PRESET].published}
    note(
        f"3/4 agents on the SIMULATED rig: {DEMO_MODEL}, 2 engines of 2 slots, {DEMO_TOKENS:,} tokens in and out",
        f"    SIMULATED time runs {1 / DEMO_SCALE:.0f}x as fast as the clock; the gateway and the requests are real",
        "    beyond 4 agents, requests queue in the SIMULATED engines and slow them; skep keeps them in the gateway",
        "    published: the real rig behind nginx least_conn; first token: the median, waiting included",
    )
    with open_store(user_paths(os.environ).store) as store:
        past_gateway = _simulated_run(store, "sweep", direct, DEMO_LEVELS, DEMO_TOKENS)
        through_gateway = _simulated_run(store, "sweep", [gateway], DEMO_LEVELS, DEMO_TOKENS)
        async with past_gateway as past, through_gateway as through:
            for agents in DEMO_LEVELS:
                if (real := published.get(agents)) is not None:
                    say(f"published {agents:3} agents  nginx      {_figures(real.tok_s, real.ttft_ms)}")
                without = await past(agents)
                say(_level_line("no gateway", without.levels[-1]))
                ours = await through(agents)
                say(_level_line("skep", ours.levels[-1]))
        note(f"4/4 {DEMO_TASKS} tasks on the SIMULATED rig through skep: one after the other, then as a swarm")
        both = {1: DEMO_TASKS, DEMO_TASKS: DEMO_TASKS}
        async with _simulated_run(store, "serial-vs-swarm", [gateway], both, DEMO_TOKENS // 2) as run:
            say(swarm := _swarm_line([await run(agents) for agents in both][-1]))
        runs = [(store.run(one.run_id), one) for one in (without, ours)]
    labels = [f"SIMULATED 2x RTX 3090, {way}" for way in ("no gateway", "skep")]
    if output.suffix == ".svg":
        return comparison_picture(runs, labels=labels)
    told = ", ".join(f"{published[n].tok_s:.0f} tok/s with {n} agents" for n in DEMO_LEVELS if n in published)
    return comparison_page(runs, labels=labels, verdict=f"published behind nginx: {told}. {swarm}")


async def _ask_one_question(endpoint: Endpoint) -> None:
    from skep.bench.metrics import tpot_ms
    from skep.bench.request import BenchTask, Sender
    from skep.wire.client import Pool

    pool, task = Pool(endpoint.origin), BenchTask(0, 0, 0, "demo", [{"role": "user", "content": DEMO_QUESTION}], 80)
    try:
        row, answer = await Sender(endpoint, pool, 0.0, timeout_s=300).ask(task)
    finally:
        await pool.close()
    each_ms = tpot_ms(row)
    if row.first_token_s is None or each_ms is None:
        raise EndpointError(f"{endpoint.model} did not answer: {row.error}", hint="`skep doctor` checks this machine")
    first = format_seconds(row.first_token_s - row.started_s)
    speed = f"{number(1000 / each_ms)} tok/s, first token after {first} (real)"
    print(f"question: {DEMO_QUESTION}", f"answer:   {' '.join(answer.split())}", speed, sep="\n", flush=True)  # noqa: T201


@contextlib.asynccontextmanager
async def _simulated_run(
    store: Store, kind: str, endpoints: Sequence[Endpoint], levels: Mapping[int, int], tokens: int
) -> AsyncIterator[Callable[[int], Awaitable[SweepSummary]]]:
    """Yield what measures a level and returns the summary so far. `levels`: agents, and their tasks.

    Several endpoints get equal shares of the agents, as from a proxy that counts connections.
    """
    from skep.bench.load_generator import LoadGenerator
    from skep.bench.load_shapes import OnRow, steady
    from skep.bench.recording import Identity, Recording, fingerprint_of
    from skep.bench.request import BenchTask, Sender
    from skep.bench.summary import summarise

    host, config = read_host(), {"concurrency": [*levels], "max_tokens": tokens, "time_scale": DEMO_SCALE}
    config["through"] = f"{len(endpoints)} engines, no gateway" if len(endpoints) > 1 else "skep"
    identity = Identity(kind, fingerprint_of([kind, "demo"], endpoints[0], host), config)
    async with Recording(store, endpoints[0], host, identity) as recording:
        how: Any = {"timeout_s": 300.0, "keep_text": False, "most_connections": DEMO_TASKS}
        drivers = [LoadGenerator(one, recording, **how) for one in endpoints]

        def task(agents: int, number: int) -> BenchTask:
            said = [{"role": "user", "content": f"{agents}.{number} " + "word " * (DEMO_TOKENS - 1)}]
            return BenchTask(agents, 0, number, "demo", said, tokens if agents else 1, fixed_output=True)

        async def measure(agents: int) -> SweepSummary:
            todo, many = [task(agents, number) for number in range(levels.get(agents, 2))], len(drivers)

            async def load(_: Sender, took: OnRow) -> None:
                async with asyncio.TaskGroup() as group:
                    for n, driver in enumerate(drivers):
                        keep, mine, width = lambda row: took(_in_rig_time(row)), todo[n::many], agents // many or 1
                        group.create_task(steady(driver.sender, keep, mine, width))

            await drivers[0].run_load(agents, 0, load, agents, lambda _: None, is_closed=agents > 0)
            return summarise(recording.run_id, recording.rows, recording.samples, simulated=True)

        try:
            await measure(0)  # a warm-up
            yield measure
        finally:
            for driver in drivers:
                await driver.close()


def _in_rig_time(row: Request) -> Request:
    names = ("started_s", "ended_s", "first_byte_s", "first_token_s", "last_token_s", "queued_ms")
    moments: Any = {name: at / DEMO_SCALE for name in names if (at := getattr(row, name)) is not None}
    moments["arrivals_s"] = tuple(at / DEMO_SCALE for at in row.arrivals_s)
    return replace(row, **moments, engine=EngineTimings())


def _level_line(way: str, level: LevelSummary) -> str:
    line, tok_s, ttft = f"SIMULATED {level.concurrency:3} agents  {way:10} ", level.effective_tok_s, level.ttft_ms
    if (why := _fault_of([level])) or tok_s is None or ttft is None:
        return f"{line} left out: {why}"
    return line + _figures(tok_s, ttft.p50)


def _figures(tok_s: float, ttft_ms: float | None) -> str:
    return f"{number(tok_s):>5} tok/s {'█' * round(tok_s / 14):16} first token {milliseconds(ttft_ms):>6}"


def _swarm_line(summary: SweepSummary) -> str:
    found, why = summary.speedups, _fault_of(summary.levels)
    if why or found is None:
        return f"SIMULATED {DEMO_TASKS} tasks: left out: {why}"
    one, all_at_once, gain = format_seconds(found.serial_wall_s), format_seconds(found.swarm_wall_s), found.by_wall
    return f"SIMULATED {DEMO_TASKS} tasks: {one} one after the other, {all_at_once} as a swarm, {times(gain)} as fast"


def _fault_of(levels: Sequence[LevelSummary]) -> str:
    """Return why figures of these levels would mislead; empty: they do not."""
    if failed := sum(level.failed for level in levels):
        return f"{failed} requests failed"
    reasons = [level.repeats[-1].why for level in levels if level.client_limited]
    return f"this machine was too busy: the client was the limit ({reasons[-1]})" if reasons else ""


def run_doctor(*, as_json: bool) -> int:
    from skep.deploy.doctor import examine_here

    facts, findings = examine_here(user_paths(os.environ))
    if as_json:
        print_json({"findings": msgspec.to_builtins(findings), "host": host_json(facts)})
    else:
        _print(findings)
    return 1 if any(finding.verdict is CheckResult.PROBLEM for finding in findings) else 0


def _print(findings: list[HostFinding]) -> None:
    """Print a line for each, wrapped on a terminal, with its hint below."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    check = max(len(finding.check) for finding in findings)
    indent, room = " " * (check + 10), console.width - check - 10 if console.is_terminal else 10_000
    for finding in findings:
        mark = Text(f"{finding.verdict.value:8}", COLOURS[finding.verdict])
        console.print(mark + Text(f"{finding.check:{check}}  " + f"\n{indent}".join(wrap(finding.detail, room))))
        if finding.hint:
            console.print(Text(indent + f"\n{indent}".join(wrap(f"→ {finding.hint}", room)), "dim"))


def store_info(*, as_json: bool) -> None:
    path = user_paths(os.environ).store
    names = "bytes runs requests swarm_runs swarm_tasks tunings tuning_stages gateway_requests"
    document: dict[str, Any] = {"path": str(path), **dict.fromkeys(names.split(), 0)}
    if path.exists():
        with open_store(path, read_only=True) as store:
            runs, swarm_runs = store.runs(), SwarmStore(store).runs()
            tunings, stages = TuningStore(store).count()
            document |= {
                "bytes": store.size_bytes(),
                "runs": len(runs),
                "requests": sum(run.requests for run in runs),
                "swarm_runs": len(swarm_runs),
                "swarm_tasks": sum(run.counts.total for run in swarm_runs),
                "tunings": tunings,
                "tuning_stages": stages,
                "gateway_requests": store.count_gateway_requests(),
            }
    if as_json:
        print_json(document)
        return
    size = format_bytes(document["bytes"])
    kept = f"{document['runs']} runs, {document['requests']} requests, {document['gateway_requests']} gateway requests"
    swarm = f"{document['swarm_runs']} swarm runs, {document['swarm_tasks']} tasks"
    tuned = f"{document['tunings']} tunings, {document['tuning_stages']} stages"
    print(f"{document['path']}: {size}, {kept}, {swarm}, {tuned}")  # noqa: T201


def store_backup(to: Path, *, overwrite: bool) -> None:
    with existing("there is no store yet") as store:
        store.backup(to, overwrite=overwrite)
    note(f"copied to {to} ({format_bytes(to.stat().st_size)})")


def collect_garbage(older_than: str | None, *, incomplete: bool, dry_run: bool, as_json: bool) -> None:
    paths = user_paths(os.environ)
    before = None if older_than is None else time.time() - parse_seconds(older_than)
    gone: dict[str, Any] = {"runs": [], "swarm_runs": [], "tunings": [], "gateway_requests": 0}
    logs = sorted(paths.logs.glob("*.log.[0-9]*")) if paths.logs.is_dir() else []
    freed = sum(log.stat().st_size for log in logs)
    if paths.store.exists():
        size = paths.store.stat().st_size
        with open_store(paths.store) as store:
            gone = _old(store, paths, before, incomplete=incomplete)
            if not dry_run:
                _delete(store, paths, before, gone)
        freed += max(0, size - paths.store.stat().st_size)
    for log in () if dry_run else logs:
        log.unlink(missing_ok=True)
    if as_json:
        print_json({"dry_run": dry_run, **gone, "files": [str(log) for log in logs], "freed_bytes": freed})
        return
    counts = {kind: len(gone[kind]) for kind in ("runs", "swarm_runs", "tunings")}
    kinds = ", ".join(f"{count} {kind.replace('_', ' ')}" for kind, count in counts.items() if count or kind == "runs")
    what = f"{kinds}, {gone['gateway_requests']} gateway requests and {len(logs)} old logs"
    note(f"{'would delete' if dry_run else 'deleted'} {what}: {format_bytes(freed)}")
    for name in (name for kind in counts for name in gone[kind]):
        print(name)  # noqa: T201


def _old(store: Store, paths: Paths, before: float | None, *, incomplete: bool) -> dict[str, Any]:
    """Return what is to go, by kind. What is at work stays; what is measured for a tuning goes by its own age.

    A swarm run that stopped halfway goes only by its age, which is when it was last at work: it can go on.
    """
    since, swarm = before if before is not None else float("-inf"), SwarmStore(store)
    old_swarm_runs = [as_it_stands(paths, run) for run in swarm.runs() if run.created_at < since]
    return {
        "runs": [
            run.id
            for run in store.runs()
            if run.state is not RunState.RUNNING
            and (run.created_at < since or (incomplete and run.state is RunState.INCOMPLETE))
        ],
        "swarm_runs": [
            run.id
            for run in old_swarm_runs
            if run.state is not SwarmRunState.RUNNING
            and max([one.started_at for one in swarm.session_rows(run.id)], default=0) < since
        ],
        "tunings": [
            one.id
            for one in TuningStore(store).tunings()
            if one.state is not TuningState.RUNNING and one.worked_at < since
        ],
        "gateway_requests": 0 if before is None else store.count_gateway_requests(before),
    }


def _delete(store: Store, paths: Paths, before: float | None, gone: dict[str, Any]) -> None:
    if before is not None:
        gone["gateway_requests"] = store.delete_gateway_requests(before)
    store.delete_runs(gone["runs"])
    SwarmStore(store).delete(gone["swarm_runs"])
    TuningStore(store).delete(gone["tunings"])
    for run_id in gone["swarm_runs"]:
        lock_path(paths, run_id).unlink(missing_ok=True)
    store.vacuum()
