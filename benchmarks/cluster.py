"""The cluster path against the local path on the same engines, and what else a cluster takes:
starts, moves.

    .venv-ray/bin/python benchmarks/cluster.py [--quick] [--only simulated|embedded|up|node]
    [--rounds N] .venv-ray/bin/python benchmarks/cluster.py --only simulated --streams 16 --rounds
    100 .venv-ray/bin/python benchmarks/cluster.py --serve TABLE.toml --results FILE [--slots N]
    [--tokens N] [--gpus N]

A Ray cluster of a head and two nodes on this machine (`make install-ray`), a hive on it by `skep
up --cluster`:

- simulated, embedded: two gateways before the same engine processes: the hive's own, and `skep
  gateway --upstream` with the same slots, as on one box. The same load through each in turns, at
  one stream, as many as slots, twice as many
- up: `skep up -d` to ready with and without `--cluster`, in turns
- node: the node of a replica is killed, and the replica moves to another

With `--serve` all parts (own, up, node) are of an engine of yours: the file is the rest of its
`[[serve]]`, such as `engine`, `checkpoint` and `binary`. `--gpus`: each node counts the first so
many cards of this machine as its own, so that an engine of the killed node starts on the same
cards again.

Ratios and differences are taken pair by pair. Ray's own processes run beside both paths and so
slow both alike; what they take at rest is printed. Without `--quick` or `--no-keep` the newest
result of each part is stored."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import uvloop
from cluster_rig import mishaps, report
from cluster_rig.atrest import at_rest
from cluster_rig.load import Asked, Loader, in_turns
from cluster_rig.rig import EMBEDDED, PACED, Door, Kind, Nodes, cluster, hive, key_of, local_path

from skep.bench.endpoint import find_endpoint

RESULTS = Path(__file__).parent / "results" / "cluster.json"
PARTS = ("simulated", "embedded", "up", "node")
OWN_PARTS = ("own", "up", "node")


@dataclass(frozen=True)
class Effort:
    simulated: int  # pairs, and the seconds that they may take
    simulated_s: float
    embedded: int
    embedded_s: float
    times: int  # of starts and of killed nodes
    rest_s: float


FULL = Effort(simulated=8, simulated_s=110, embedded=6, embedded_s=170, times=3, rest_s=10.0)
QUICK = Effort(simulated=2, simulated_s=0, embedded=2, embedded_s=0, times=1, rest_s=3.0)


@dataclass(frozen=True)
class Turns:
    """Pairs, the seconds that they may take, and at which streams; None: at each level."""

    rounds: int
    budget_s: float
    streams: int | None = None


def levels_of(kind: Kind, streams: int | None) -> list[Asked]:
    slots = kind.all_slots
    found = [
        Asked(1, 6 if kind.simulated else 3),
        Asked(slots, 3 * slots),
        Asked(2 * slots, 4 * slots),
    ]
    return [one for one in found if streams in (None, one.streams)]


async def paths(owner: Door, local: Door, kind: Kind, key: str, turns: Turns) -> dict[int, Any]:
    engine = owner.replicas()[0]["url"]
    ways = {
        "local": await find_endpoint(local.url, kind.model),
        "cluster": await find_endpoint(owner.url, kind.model),
        "direct": await find_endpoint(engine, None, key=key),
    }
    levels = levels_of(kind, turns.streams)
    return await in_turns(
        Loader(kind, "paths"), ways, levels, turns.rounds, turns.budget_s, only_alone="direct"
    )


def compared(nodes: Nodes, kind: Kind, turns: Turns, rest_s: float) -> dict[str, Any]:
    say(f"{kind.model}: skep up --cluster")
    with hive(kind, nodes.address) as owner:
        key = key_of(nodes.address)
        with local_path(kind, owner, key) as local:
            say(f"{kind.model}: Ray at rest")
            rest = at_rest(rest_s)
            say(f"{kind.model}: {turns.rounds} rounds in turns")
            found = uvloop.run(paths(owner, local, kind, key, turns))
    say("")
    size = f"{kind.replicas} x {kind.slots} slots, {kind.words} words in, {kind.tokens} tokens out"
    report.print_paths(f"{kind.title}; {size}", found)
    print(
        f"  Ray at rest: {rest['cores']:.2f} cores, {rest['memory_mib']:.0f} MiB in "
        f"{rest['processes']:.0f} processes"
    )
    ratios = {
        streams: report.paired(ways["cluster"], ways["local"]) for streams, ways in found.items()
    }
    return {"kind": asdict(kind), "at_rest": rest, "cluster_over_local": ratios, "levels": found}


def up(nodes: Nodes, kind: Kind, times: int) -> dict[str, Any]:
    found = mishaps.starts(nodes, kind, times, say)
    say("")
    report.print_times(
        f"{kind.title}; {kind.replicas} replicas",
        {f"skep {name}": row for name, row in found.items()},
    )
    return {"kind": asdict(kind), "seconds": found}


def node(nodes: Nodes, kind: Kind, times: int) -> dict[str, Any]:
    found = mishaps.moves(nodes, kind, times, say)
    say("")
    words = {
        "noticed": [one.noticed_s for one in found],
        "then its post on another node": [one.placed_s - one.noticed_s for one in found],
        "then its engine ready": [one.ready_s - one.placed_s for one in found],
        "in all": [one.ready_s for one in found],
        "the first request sent after it answered": [one.answered_s for one in found],
    }
    report.print_times(f"{kind.title}; the node of the only replica killed", words)
    print(f"  requests refused meanwhile: {sum(one.refused for one in found)}")
    return {"kind": asdict(kind), "moves": found}


def say(words: str) -> None:
    if sys.stderr.isatty():
        print(
            f"\r{words[:78]:78}" if words else "\r" + " " * 78 + "\r",
            end="",
            file=sys.stderr,
            flush=True,
        )
    elif words:
        print(words, file=sys.stderr, flush=True)


def keep(path: Path, part: str, result: dict[str, Any]) -> None:
    known = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**known, part: report.as_json(result)}, indent=1) + "\n")


def own_kind(args: argparse.Namespace) -> Kind:
    table = args.serve.read_text()
    title = (
        f"{args.model}: {', '.join(line.strip() for line in table.splitlines() if line.strip())}"
    )
    return Kind(title, args.model, 1, args.slots, args.tokens, args.words, table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="too few rounds to say anything; not stored"
    )
    parser.add_argument("--only", choices=sorted({*PARTS, *OWN_PARTS}), action="append")
    parser.add_argument(
        "--rounds", type=int, help="pairs of simulated and embedded, however long they take"
    )
    parser.add_argument(
        "--streams", type=int, metavar="C", help="one level only, stored beside the others"
    )
    parser.add_argument(
        "--no-keep", action="store_true", help="results are printed and not stored"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="where they are stored")
    own = parser.add_argument_group("an engine of yours")
    own.add_argument("--serve", type=Path, metavar="TABLE.toml")
    own.add_argument("--model", default="own")
    for name, value in (("slots", 16), ("tokens", 128), ("words", 100), ("gpus", 0)):
        own.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    if args.serve is not None and args.results == RESULTS and not (args.quick or args.no_keep):
        parser.error(
            "--serve wants --results FILE, or --no-keep: the stored ones are of other engines"
        )
    mine, parts = (own_kind(args), OWN_PARTS) if args.serve is not None else (None, PARTS)
    effort = QUICK if args.quick else FULL

    def pairs(kind: Kind, number: int, budget_s: float) -> Turns:
        known = [level.streams for level in levels_of(kind, None)]
        if args.streams not in (None, *known):
            parser.error(f"--streams is one of {', '.join(map(str, known))}")
        if args.rounds:
            return Turns(args.rounds, math.inf, args.streams)
        return Turns(number, budget_s, args.streams)

    import ray

    print(
        f"{os.cpu_count()} cores, Ray {ray.__version__}, a head and two nodes on this machine",
        flush=True,
    )
    with cluster(gpus=args.gpus) as nodes:
        for part in [part for part in parts if part in (args.only or parts)]:
            began = time.monotonic()
            busy = os.getloadavg()[0]
            match part:
                case "simulated":
                    turns = pairs(PACED, effort.simulated, effort.simulated_s)
                    result = compared(nodes, PACED, turns, effort.rest_s)
                case "embedded" | "own":
                    turns = pairs(mine or EMBEDDED, effort.embedded, effort.embedded_s)
                    result = compared(nodes, mine or EMBEDDED, turns, effort.rest_s)
                case "up":
                    result = up(nodes, mine or EMBEDDED, effort.times)
                case _:
                    result = node(nodes, mine or EMBEDDED, effort.times)
            took_s = time.monotonic() - began
            print(
                (
                    f"  ({part}: {took_s:.0f} s; load average {busy:.1f} before, "
                    f"{os.getloadavg()[0]:.1f} after)\n"
                ),
                flush=True,
            )
            if not (args.quick or args.no_keep):
                keep(
                    args.results,
                    f"{part}, C={args.streams}" if args.streams and "levels" in result else part,
                    {
                        "cores": os.cpu_count(),
                        "ray": ray.__version__,
                        "load_average": busy,
                        **result,
                    },
                )


if __name__ == "__main__":
    main()
