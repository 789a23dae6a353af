"""The same recorded sessions by `skep bench agents --trace` and by AIPerf: session time and CPU.

    .venv/bin/python benchmarks/replay.py [--quick] [--rounds 4] [--levels 8,32] [--trace FILE]

Both replay one trace, made here unless one is named: turns with the name of their session, a text,
the length of the answer and the pause before the turn. Both hold N sessions at once, feed the
answers back and pause after an answer has ended. They take turns before one fake engine of fixed
speed, and which of them begins changes every round. What a session takes where no time is lost
follows from the trace and that speed. CPU is that of all processes of a tool; that of the load is
less a run of one session with a single turn.

AIPerf comes from PyPI, into a venv of its own. It replays twice: with --concurrency alone, where
its loop asks for the next turn without a pause, and paced, where --request-rate lets it ask 200
times a second: that is cheaper and may hold a turn back for 5 ms. It has no sessions in Mooncake's
own format, whose lines are single requests at fixed times there: lines name their session here."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec
from loaders import child
from loaders.base import CouldNotRun, Loader
from loaders.install import installed
from loaders.others import OTHERS
from loaders.tokenizer import write_tokenizer

from skep.bench.trace_files import read_trace
from skep.stats.versus import judge
from skep.testing.process import FakeEngine

RESULTS = Path(__file__).parent / "results" / "replay.json"
TOKEN_MS = 20.0
FIRST_MS = 200.0
MODEL = "fake-model"
TURNS = 6
SESSIONS_EACH = 2  # in a run, for each that is held at once
LIMIT_S = 900.0
PACE = 200  # times a second that AIPerf looks for a turn to send, where it is paced
SEED = 7
WORDS = ("parser", "returns", "list", "empty", "input", "when", "test", "value", "line", "reads")
TIME_GOAL = 0.02  # session time lies within this share of AIPerf's
CPU_GOAL = 0.1  # of AIPerf's CPU

Rounds = dict[str, list[dict[str, float]]]  # figures of each round, by tool
Ratio = dict[str, float]


@dataclass(frozen=True)
class Replay:
    """What one run of one tool gave."""

    session_s: Sequence[float]
    turns: int
    cpu_s: float
    wall_s: float
    output_tokens: int  # as the engine counts them
    engine_requests: int

    def figures(self) -> dict[str, float]:
        """Return what is kept of it."""
        return {
            "session_p50_s": statistics.median(self.session_s),
            "session_mean_s": statistics.fmean(self.session_s),
            "sessions": len(self.session_s),
            "turns": self.turns,
            "cpu_s": self.cpu_s,
            "wall_s": self.wall_s,
            "output_tokens": self.output_tokens,
            "engine_requests": self.engine_requests,
        }


@dataclass(frozen=True)
class Task:
    """One run: a trace, how many of its sessions at once, and where it writes."""

    url: str
    trace: Path
    level: int
    sessions: int
    folder: Path
    venv: Path


@dataclass(frozen=True)
class Tool:
    """How a replay is started, and how its session times are read."""

    name: str
    argv: Callable[[Task], list[str]]
    sessions: Callable[[Task], tuple[list[float], int]]


def skep_argv(task: Task) -> list[str]:
    program = str(Path(sys.executable).with_name("skep"))
    argv = [program, "bench", "agents", "--url", task.url, "--trace", str(task.trace), "--json"]
    argv += ["-c", str(task.level), "--sessions", str(task.sessions), "--seed", str(SEED)]
    return argv


def skep_sessions(task: Task) -> tuple[list[float], int]:
    """Return what each session took, from the rows that are stored, and how many turns."""
    program = str(Path(sys.executable).with_name("skep"))
    argv = [program, "runs", "export", "last", "--requests", "--format", "json"]
    output = task.folder / "rows.json"
    child.run(argv, environment(task), task.folder, output, limit_s=60)
    ends: dict[int, tuple[float, float]] = {}
    rows = [row for row in json.loads(output.read_text()) if row["level"]]
    for row in rows:
        if row["error_kind"]:
            raise CouldNotRun(f"skep: a turn failed: {row['error']}")
        widen(ends, row["session"], row["started_s"], row["ended_s"])
    return [end - begin for begin, end in ends.values()], len(rows)


def aiperf_argv(task: Task) -> list[str]:
    program = str(task.venv / "bin" / "aiperf")
    argv = [program, "profile", "--model", MODEL, "--url", task.url, "--endpoint-type", "chat"]
    argv += ["--streaming", "--use-server-token-count", "--tokenizer", str(task.folder.parent)]
    argv += ["--input-file", str(task.trace), "--custom-dataset-type", "mooncake-trace"]
    argv += ["--concurrency", str(task.level), "--num-sessions", str(task.sessions)]
    argv += ["--ui", "none", "--no-gpu-telemetry", "--no-server-metrics"]
    argv += ["--output-artifact-dir", str(task.folder / "aiperf")]
    return argv


def paced_argv(task: Task) -> list[str]:
    return [*aiperf_argv(task), "--request-rate", str(PACE), "--arrival-pattern", "constant"]


def aiperf_sessions(task: Task) -> tuple[list[float], int]:
    """Return what each session took, by the records of its requests, and how many turns."""
    ends: dict[str, tuple[float, float]] = {}
    path = task.folder / "aiperf" / "profile_export.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        if record.get("error"):
            raise CouldNotRun(f"aiperf: a turn failed: {record['error']}")
        about = record["metadata"]
        begin = about["request_start_ns"] / 1e9
        widen(ends, about["x_correlation_id"], begin, about["request_end_ns"] / 1e9)
    return [end - begin for begin, end in ends.values()], len(records)


TOOLS = (
    Tool("skep", skep_argv, skep_sessions),
    Tool("aiperf", aiperf_argv, aiperf_sessions),
    Tool("aiperf, paced", paced_argv, aiperf_sessions),
)
PEERS = tuple(tool.name for tool in TOOLS[1:])


def widen(ends: dict[Any, tuple[float, float]], session: Any, begin: float, end: float) -> None:
    """Take a turn into the time that its session lasts."""
    first, last = ends.get(session, (math.inf, -math.inf))
    ends[session] = (min(first, begin), max(last, end))


def environment(task: Task) -> dict[str, str]:
    folders = ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
    return {name: str(task.folder / "skep") for name in folders}


def write_tokenizer_of_words(folder: Path) -> None:
    """Write a tokenizer that knows whole words: AIPerf reads a book with it at each start."""
    write_tokenizer(folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = {word: number for number, word in enumerate(("<unk>", "</s>", *WORDS))}
    tokenizer["model"] = {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"}
    tokenizer["pre_tokenizer"] = {"type": "WhitespaceSplit"}
    tokenizer["decoder"] = None
    path.write_text(json.dumps(tokenizer))


def write_sample(path: Path, sessions: int, turns: int = TURNS) -> None:
    """Write a trace of growing conversations: 0.4 to 3 s of pause, 30 to 100 tokens an answer."""
    rng = Random(SEED)
    with path.open("w", encoding="utf-8") as file:
        for session in range(sessions):
            for turn in range(turns):
                words = 300 if turn == 0 else rng.randrange(40, 160)
                line: dict[str, Any] = {
                    "session_id": f"session-{session}",
                    "text_input": " ".join(rng.choice(WORDS) for _ in range(words)),
                    "output_length": rng.randrange(30, 101),
                }
                if turn:
                    line["delay"] = rng.randrange(400, 3001)
                file.write(json.dumps(line) + "\n")


def ideal_sessions(trace: Path, sessions: int) -> list[float]:
    """Return what sessions take where no client loses any time."""
    scripts = read_trace(trace)
    times = []
    for number in range(sessions):
        turns = scripts[number % len(scripts)].turns
        pauses = sum(turn.pause_s for turn in turns)
        decode_ms = sum(FIRST_MS + TOKEN_MS * (turn.output_tokens - 1) for turn in turns)
        times.append(pauses + decode_ms / 1000)
    return times


@dataclass
class Bench:
    """Runs the tools in turns, and keeps what they gave by level and tool."""

    engine: FakeEngine
    place: Path
    venv: Path
    trace: Path
    rounds: dict[str, Rounds] = field(default_factory=dict)
    starts: dict[str, float] = field(default_factory=dict)  # CPU seconds of a run of one turn

    def once(self, tool: Tool, trace: Path, level: int, sessions: int) -> Replay:
        folder = Path(tempfile.mkdtemp(dir=self.place))
        task = Task(self.engine.url, trace, level, sessions, folder, self.venv)
        before = self.engine.state()
        output = folder / "stdout.txt"
        ran = child.run(tool.argv(task), environment(task), folder, output, limit_s=LIMIT_S)
        if ran.status != 0:
            errors = output.with_suffix(".err").read_text() or output.read_text()
            raise CouldNotRun(f"{tool.name}: exit status {ran.status}: {errors[-2000:]}")
        after = self.engine.state()
        session_s, turns = tool.sessions(task)
        return Replay(
            session_s=session_s,
            turns=turns,
            cpu_s=ran.cpu_s,
            wall_s=ran.wall_s,
            output_tokens=after["output_tokens"] - before["output_tokens"],
            engine_requests=after["requests"] - before["requests"],
        )

    def start_cost(self, tool: Tool) -> None:
        """Measure the CPU of a run that does next to nothing."""
        trace = self.place / "one.jsonl"
        write_sample(trace, sessions=1, turns=1)
        self.starts[tool.name] = self.once(tool, trace, 1, 1).cpu_s
        say(f"{tool.name}: one turn, {self.starts[tool.name]:.2f} s of CPU")

    def run_round(self, level: int, number: int) -> None:
        first = number % len(TOOLS)
        for tool in (*TOOLS[first:], *TOOLS[:first]):
            replay = self.once(tool, self.trace, level, SESSIONS_EACH * level)
            figures = replay.figures()
            of_level = self.rounds.setdefault(str(level), {})
            of_level.setdefault(tool.name, []).append(figures)
            say(
                f"round {number + 1}, {level} at once: {tool.name}: session "
                f"{figures['session_p50_s']:.2f} s (mean {figures['session_mean_s']:.2f}), "
                f"{figures['turns']} turns, CPU {figures['cpu_s']:.2f} s"
            )

    def results(self) -> dict[str, Any]:
        levels = {level: self._of_level(int(level)) for level in self.rounds}
        return {
            "simulated": True,
            "machine": machine(),
            "engine": {"first_token_ms": FIRST_MS, "token_ms": TOKEN_MS},
            "aiperf": aiperf().version,
            "start_cpu_s": self.starts,
            "levels": levels,
        }

    def _of_level(self, level: int) -> dict[str, Any]:
        rounds = self.rounds[str(level)]
        ideal = ideal_sessions(self.trace, SESSIONS_EACH * level)
        return {
            "sessions": SESSIONS_EACH * level,
            "ideal_p50_s": statistics.median(ideal),
            "ideal_mean_s": statistics.fmean(ideal),
            "skep_over": {peer: self._ratios(rounds, peer) for peer in PEERS},
            "rounds": rounds,
        }

    def _ratios(self, rounds: Rounds, peer: str) -> dict[str, Ratio | None]:
        names = ("session_p50_s", "session_mean_s", "cpu_s")
        ratios = {name: ratio(rounds, name, peer) for name in names}
        return {**ratios, "load_cpu_s": ratio(self._load_only(rounds), "cpu_s", peer)}

    def _load_only(self, rounds: Rounds) -> Rounds:
        """Return the CPU seconds of each round without those of the start."""
        return {
            name: [{"cpu_s": figures["cpu_s"] - self.starts[name]} for figures in of_tool]
            for name, of_tool in rounds.items()
        }


def ratio(rounds: Rounds, name: str, peer: str) -> Ratio | None:
    """Return skep's figure over a peer's of the same round, with its 95 % interval."""
    ours = [figures[name] for figures in rounds["skep"]]
    theirs = [figures[name] for figures in rounds[peer]]
    interval, _ = judge(theirs, ours, higher_is_better=False, paired=True)
    if interval is None:
        return None
    shares = [our / their for our, their in zip(ours, theirs, strict=True)]
    document: Ratio = msgspec.to_builtins(interval)
    return {**document, "lowest": min(shares), "highest": max(shares)}


def print_results(results: dict[str, Any]) -> None:
    print(
        f"AIPerf {results['aiperf']}, same trace and engine, in turns; ratios with their "
        "95 % interval and range over the rounds"
    )
    for level, found in results["levels"].items():
        print(f"{level} sessions at once, {found['sessions']} in all:")
        for tool, rounds in found["rounds"].items():
            p50 = statistics.median(figures["session_p50_s"] for figures in rounds)
            mean = statistics.median(figures["session_mean_s"] for figures in rounds)
            cpu = statistics.median(figures["cpu_s"] for figures in rounds)
            print(
                f"  {tool}: session p50 {p50:.2f} s ({p50 / found['ideal_p50_s'] - 1:+.1%} of the "
                f"schedule), mean {mean:.2f} s ({mean / found['ideal_mean_s'] - 1:+.1%}), "
                f"CPU {cpu:.2f} s"
            )
        for peer, shares in found["skep_over"].items():
            print(f"  skep over {peer}: {verdict(shares)}")
            for name, share in shares.items():
                print(f"    {name}: {ratio_words(share)}")


def ratio_words(share: Ratio | None) -> str:
    if share is None:
        return "one round, no interval"
    return (
        f"{share['estimate']:.3f} ({share['low']:.3f}..{share['high']:.3f}; "
        f"{share['lowest']:.3f}..{share['highest']:.3f})"
    )


def verdict(shares: dict[str, Ratio | None]) -> str:
    """Return whether the goals are reached."""
    times = shares["session_mean_s"]
    cpu = shares["cpu_s"]
    if times is None or cpu is None:
        return "not judged by one round"
    is_near = abs(times["estimate"] - 1) <= TIME_GOAL
    is_cheap = cpu["estimate"] <= CPU_GOAL
    return (
        f"session time within {TIME_GOAL:.0%}: {'reached' if is_near else 'missed'}; "
        f"a tenth of the CPU: {'reached' if is_cheap else 'missed'}"
    )


def aiperf() -> Loader:
    return next(loader for loader in OTHERS if loader.name == "aiperf")


def machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "arch": platform.machine(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[1],
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round of 4 sessions at once")
    parser.add_argument("--rounds", type=int, help="default 4")
    parser.add_argument("--levels", help="sessions at once, comma-separated; default 8,32")
    parser.add_argument("--trace", type=Path, help="instead of the one that is made here")
    args = parser.parse_args()
    rounds = args.rounds or (1 if args.quick else 4)
    levels = [int(word) for word in (args.levels or ("4" if args.quick else "8,32")).split(",")]
    venv = installed(aiperf())
    assert venv is not None
    child.adopt_orphans()
    with (
        tempfile.TemporaryDirectory() as folder,
        FakeEngine(
            slots=4 * max(levels),
            ttft_ms=FIRST_MS,
            token_ms=TOKEN_MS,
            ctx=131_072,
            model=MODEL,
        ) as engine,
    ):
        place = Path(folder)
        write_tokenizer_of_words(place)
        trace = args.trace
        if trace is None:
            trace = place / "trace.jsonl"
            write_sample(trace, sessions=SESSIONS_EACH * max(levels))
        bench = Bench(engine, place, venv, trace)
        for tool in TOOLS:
            bench.start_cost(tool)
        for number in range(rounds):
            for level in levels:
                bench.run_round(level, number)
        results = bench.results()
    print_results(results)
    if not args.quick:
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
