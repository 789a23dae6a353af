"""How true and how cheap load generators are: skep beside others, before a server whose times are
known.

    .venv/bin/python benchmarks/loadgen.py [--quick] [--peers skep,aiohttp] [--concurrency 1,256]
    [--rounds 3] [--json]

The truth server (truth/truth.c) streams on an exact schedule and keeps what it really sent; each
tool is run by its own command line (loaders/), in turns, and its figures are held against that.
Peers from PyPI are installed into venvs of their own on the first run."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loaders import child, measure
from loaders.base import CouldNotRun, Load, Loader
from loaders.install import installed
from loaders.others import OTHERS
from loaders.ours import PLAIN, SKEP
from loaders.report import goals, print_report
from loaders.tokenizer import write_tokenizer
from truth.server import FORMS, MODEL, NoCompiler, TruthServer

LOADERS = {loader.name: loader for loader in (SKEP, PLAIN, *OTHERS)}
TTFT_MS = 50.0
GAP_MS = 10.0
TOKENS = 128
FORM_CONCURRENCY = 8
RESULTS = Path(__file__).parent / "results" / "loadgen.json"
FILES = 16384  # 1,024 connections a process, and what a tool opens besides


@dataclass(frozen=True, slots=True)
class Effort:
    levels: tuple[int, ...]
    rounds: int
    waves: int  # requests of a level: so many times its concurrency
    forms: tuple[str, ...]
    form_requests: int

    def requests(self, level: int) -> int:
        return max(8, self.waves * level)


@dataclass
class Bench:
    """The tools under test, those that failed and why, and what was found of each."""

    loaders: list[Loader]
    effort: Effort
    place: Path
    server: TruthServer
    venvs: dict[str, Path | None] = field(default_factory=dict)
    could_not_run: dict[str, str] = field(default_factory=dict)
    levels: dict[int, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    startup: dict[int, dict[str, dict[str, float]]] = field(default_factory=dict)
    forms: dict[str, dict[str, Any]] = field(default_factory=dict)

    def install(self) -> None:
        for loader in list(self.loaders):
            try:
                self.venvs[loader.name] = installed(loader)
            except CouldNotRun as error:
                self.could_not_run[loader.name] = str(error)
                self.loaders.remove(loader)

    def once(self, loader: Loader, model: str, level: int, requests: int) -> dict[str, Any]:
        load = Load(self.server.url, model, level, requests, TOKENS)
        place = measure.place_for(
            self.place / loader.name, self.venvs[loader.name], self.place / "tokenizer"
        )
        return measure.once(loader, load, self.server, place)

    def start(self, loader: Loader, level: int) -> float:
        """CPU seconds of a run with one request at this concurrency; measured once."""
        known = self.startup.setdefault(level, {})
        if loader.name not in known:
            say(f"c={level}: {loader.name}, one request")
            found = self.once(loader, MODEL, level, 1)
            known[loader.name] = {"cpu_s": found["cpu_s"], "wall_s": found["wall_s"]}
        return known[loader.name]["cpu_s"]

    def run_level(self, level: int, number: int) -> None:
        requests = self.effort.requests(level)
        for loader in turned(self.loaders, number):
            rounds = self.levels.setdefault(level, {}).setdefault(loader.name, [])
            try:
                start_cpu_s = self.start(loader, level)
                say(
                    f"round {number + 1} of {self.effort.rounds}, c={level}: {loader.name}, "
                    f"{requests} requests"
                )
                found = self.once(loader, MODEL, level, requests)
            except CouldNotRun as error:
                say(f"c={level}: {loader.name}: {error}")
                rounds.append({"failed": str(error)})
                continue
            said = found["said"]["tok_s"]
            sent = found["sent"]["tok_s"]
            found["share_said"] = None if said is None else said / ceiling(level)
            found["share_sent"] = sent / ceiling(level)
            found["load_cpu_s"] = found["cpu_s"] - start_cpu_s
            rounds.append(found)

    def run_form(self, form: str) -> None:
        """Once, as it comes."""
        model = f"{MODEL}-{form}" if form != "plain" else MODEL
        for loader in self.loaders:
            plain = self.forms.get("plain", {}).get(loader.name, {})
            say(f"{form}: {loader.name}")
            try:
                found = self.once(loader, model, FORM_CONCURRENCY, self.effort.form_requests)
                told = {**found, "verdict": measure.verdict(found, TOKENS, plain)}
            except CouldNotRun as error:
                told = {"failed": str(error), "verdict": "failed"}
            self.forms.setdefault(form, {})[loader.name] = told

    def run(self) -> None:
        for number in range(self.effort.rounds):
            for level in self.effort.levels:
                self.run_level(level, number)
        for form in self.effort.forms:
            self.run_form(form)

    def results(self) -> dict[str, Any]:
        """What there is; also of a run that was interrupted."""
        order = [loader.name for loader in self.loaders]
        levels = {
            str(level): {
                name: self.levels[level][name] for name in order if name in self.levels[level]
            }
            for level in self.effort.levels
            if level in self.levels
        }
        results = {
            "machine": {**machine(), "server": f"scheduled {self.server.scheduling}"},
            "asked": {
                "ttft_ms": TTFT_MS,
                "gap_ms": GAP_MS,
                "tokens": TOKENS,
                "rounds": self.effort.rounds,
                "requests": {
                    str(level): self.effort.requests(level) for level in self.effort.levels
                },
                "ceiling_tok_s": {str(level): ceiling(level) for level in self.effort.levels},
                "form_concurrency": FORM_CONCURRENCY,
            },
            "levels": levels,
            "startup": {str(level): starts for level, starts in self.startup.items()},
            "forms": self.forms,
            "could_not_run": self.could_not_run,
        }
        return {**results, "goals": goals(results)}


def ceiling(level: int) -> float:
    """tok/s of `level` clients that lose no time at all."""
    return level * TOKENS / (TTFT_MS + (TOKENS - 1) * GAP_MS) * 1000


def turned(loaders: Sequence[Loader], by: int) -> list[Loader]:
    by %= max(1, len(loaders))
    return [*loaders[by:], *loaders[:by]]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    from skep import __version__

    return {
        "cores": os.cpu_count(),
        "arch": platform.machine(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[1],
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "versions": {
            "skep": __version__,
            **{name: one.version for name, one in LOADERS.items() if one.version},
        },
    }


def open_files() -> None:
    """For this process and those it starts; as many as the kernel allows where it allows fewer."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # more than `most` is for root
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, max(FILES, most) if most > 0 else most))
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    say(f"only {most} open files are allowed here: levels above {most // 2} may fail")


def effort_of(args: argparse.Namespace) -> Effort:
    levels = args.concurrency or ("1,256" if args.quick else "1,64,256,1024")
    forms = () if args.only == "levels" else ("plain", *FORMS)
    return Effort(
        levels=() if args.only == "forms" else tuple(int(word) for word in levels.split(",")),
        rounds=args.rounds or (1 if args.quick else 3),
        waves=2 if args.quick else 4,
        forms=forms,
        form_requests=FORM_CONCURRENCY * (1 if args.quick else 2),
    )


def keep(results: dict[str, Any]) -> None:
    """Levels and odd streams may be measured apart, and a run may be cut short: what is new
    replaces what was.
    """
    if RESULTS.exists():
        known = json.loads(RESULTS.read_text())
    else:
        known = {}
    for part in ("levels", "forms"):
        results[part] = {**known.get(part, {}), **results[part]}
    results["startup"] = {**known.get("startup", {}), **results["startup"]}
    RESULTS.write_text(json.dumps({**results, "goals": goals(results)}, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="skep beside other load generators, before a server that knows"
    )
    parser.add_argument(
        "--quick", action="store_true", help="c = 1 and 256, one round; skep and aiohttp"
    )
    parser.add_argument("--peers", help=f"comma-separated; known: {','.join(LOADERS)}")
    parser.add_argument("--concurrency", help="comma-separated; default 1,64,256,1024")
    parser.add_argument("--rounds", type=int, help="default 3")
    parser.add_argument(
        "--only", choices=("levels", "forms"), help="leave the odd streams out, or all but them"
    )
    parser.add_argument(
        "--ahead",
        action="store_true",
        help="tools run before other work on this machine (nice -20)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the results as JSON instead of the tables"
    )
    args = parser.parse_args()
    names = (args.peers or ("skep,aiohttp" if args.quick else ",".join(LOADERS))).split(",")
    if unknown := set(names) - set(LOADERS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(LOADERS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    open_files()
    child.adopt_orphans()
    if args.ahead:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)
    interrupted = False
    try:
        server = TruthServer(ttft_ms=TTFT_MS, gap_ms=GAP_MS)
    except NoCompiler as error:
        say(f"error: {error}")
        return 1
    with tempfile.TemporaryDirectory(prefix="loadgen-bench-") as folder, server:
        write_tokenizer(Path(folder) / "tokenizer")
        bench = Bench([LOADERS[name] for name in names], effort_of(args), Path(folder), server)
        bench.install()
        try:
            bench.run()
        except KeyboardInterrupt:
            interrupted = True
            say("interrupted: what was measured so far")
        results = bench.results()
    if args.json:
        print(json.dumps(results, indent=1))
    else:
        print_report(results)
    if set(names) == set(LOADERS) and not (args.quick or args.concurrency):
        keep(results)
    return 130 if interrupted else 0


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):  # before the first measurement
        sys.exit(main())
    sys.exit(130)
