"""Print how large skep is: lines and modules, small modules, shared class names; with `--trace`,
files per action.

How each number is counted:

- lines: lines of the .py files of a package, blank ones and comments too; "(root)" are the modules
  beside the packages.
- code lines: lines without blank lines, comments, docstrings and imports. A *small* module has
  fewer than 40 of them and is imported by exactly one other module of skep (imports inside
  functions count; `__init__` does not).
- shared class names: names under which more than one class is defined, nested classes and private
  ones included.
- files entered: files of skep of which a function was called; bodies of modules and classes do not
  count, and neither does the fake engine's own process. Modules loaded: files whose body was run,
  packages' `__init__` included.
- hops: calls from one file of skep into another, the resuming of a coroutine included. Frames of
  libraries in between are passed over, the event loop is not: what it calls has no caller.
- `plan`: the one process of `skep plan`. `up`: all processes from `skep up -d` to the end of `skep
  down`, one replica.
- `chat`: the first streamed request of a gateway, in the gateway's process, until no new file was
  entered for a second: what the health loop does in that time is part of it.
- `sweep`: `skep bench sweep`, 8 measured requests and a quick warm-up.
- `state change`: the turn of the supervisor's event loop with the most hops, between the start of
  the engine's process and the moment `skep up -d` returns: the replica becomes ready and everybody
  is told.

- what makes the text hard to read: scripts/readability.py says how.

`--ratchet` lowers the counts in tests/size_budget.toml to today's and raises none. Lines and
modules have no budget. What a package says (`nodes`) may be raised by hand, in the commit of the
feature that needs it, with a word why."""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from readability import TreeCounts, budget_of, count_tree

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src" / "skep"
BUDGET = ROOT / "tests" / "size_budget.toml"
HOOK = ROOT / "scripts" / "trace_hook"
HEAD = """# What tests/test_size.py and tests/test_readability.py allow. Numbers only fall, names only leave:
# `python scripts/size.py --ratchet`. `src.nodes` is what a package says, in nodes of its syntax tree: a feature may
# raise that of its package, in its own commit."""
# of a long module a seam is looked for; tests/test_architecture.py fails at 700
SMALL = 40
LONG = 500
Budget = dict[str, dict[str, Any]]
TREES = {"src": SRC, "tests": ROOT / "tests"}


@dataclass(slots=True)
class Size:
    """What is counted without running anything.

    Keys of `lines` and `modules` are packages, and "all".
    """

    lines: dict[str, int] = field(default_factory=dict)
    modules: dict[str, int] = field(default_factory=dict)
    tests: int = 0
    long: dict[str, int] = field(default_factory=dict)  # module over `LONG` lines: how many
    small: dict[str, str] = field(default_factory=dict)  # module: its only importer
    shared: dict[str, int] = field(default_factory=dict)  # class name: number of classes
    names: dict[str, str] = field(default_factory=dict)  # every module and class: where it stands


def measure() -> Size:
    """Read all of src/skep once.

    A tree is dropped when it has been counted: to keep them costs seconds.
    """
    size = Size(
        tests=sum(path.read_bytes().count(b"\n") for path in (ROOT / "tests").rglob("*.py"))
    )
    lines: Counter[str] = Counter()
    modules: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    importers: defaultdict[str, set[str]] = defaultdict(set)
    code: dict[str, int] = {}
    for path in sorted(SRC.rglob("*.py")):
        inside = path.relative_to(SRC)
        name = str(inside.with_suffix(""))
        text = path.read_text()
        for key in (inside.parts[0] if len(inside.parts) > 1 else "(root)", "all"):
            lines[key] += text.count("\n")
            modules[key] += 1
        if text.count("\n") > LONG:
            size.long[name] = text.count("\n")
        size.names[name] = inside.stem
        nodes = statements(ast.parse(text))
        code[name] = code_lines(text, nodes)
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                classes[node.name.lstrip("_")] += 1
                size.names[f"{name}.{node.name}"] = node.name
            for target in _imported(node):
                importers[target].add(name)
    packages = [*sorted(lines.keys() - {"all"}), "all"]
    size.lines = {key: lines[key] for key in packages}
    size.modules = {key: modules[key] for key in packages}
    size.shared = {name: number for name, number in sorted(classes.items()) if number > 1}
    for name, number in code.items():
        if number < SMALL and len(importers[name]) == 1 and not name.endswith("__init__"):
            (size.small[name],) = importers[name]
    return size


def statements(tree: ast.AST) -> list[ast.AST]:
    """Return `tree` and every statement in it, but no expression: many times as quick as
    `ast.walk`.
    """
    found = [tree]
    for node in found:
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, name, None)
            if isinstance(inner, list):
                found += inner
    return found


def _imported(node: ast.AST) -> Iterator[str]:
    """Yield the modules of skep that an import statement may name, as `gateway/proxy`."""
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
        names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    else:
        return
    yield from (
        name.removeprefix("skep.").replace(".", "/") for name in names if name.startswith("skep.")
    )


def code_lines(text: str, nodes: Iterable[ast.AST]) -> int:
    """Count the lines that are neither blank nor comment, docstring or import."""
    left_out: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                left_out.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    stripped = enumerate((line.strip() for line in text.splitlines()), 1)
    return sum(
        1
        for number, line in stripped
        if line and not line.startswith("#") and number not in left_out
    )


# The budget


def read_budget() -> Budget:
    return flat(tomllib.loads(BUDGET.read_text()))


def read_trees() -> dict[str, TreeCounts]:
    return {name: count_tree(folder) for name, folder in TREES.items()}


def readability_budget(trees: Mapping[str, TreeCounts]) -> Budget:
    """Return today's numbers by table, such as `src.rates`."""
    return {
        f"{tree}.{title}": table
        for tree, counts in trees.items()
        for title, table in budget_of(counts).items()
    }


def ratchet(old: Budget, size: Size, trees: Mapping[str, TreeCounts]) -> Budget:
    """Return the budget lowered to today: no number rises, what is gone leaves its list, nothing
    enters one.
    """
    today = {"shared_classes": size.shared, "forbidden_names": Counter(size.names.values())}
    today |= readability_budget(trees)
    return {title: _lowered(table, today[title]) for title, table in old.items() if title in today}


def _lowered(old: dict[str, float], now: Mapping[str, float]) -> dict[str, float]:
    return {name: min(number, now[name]) for name, number in old.items() if name in now}


def write_budget(budget: Budget) -> None:
    text = [HEAD]
    for title, table in budget.items():
        text.append(f"\n[{title}]")
        for key, value in table.items():
            text.append(f"{key if key.replace('_', '').isalnum() else json.dumps(key)} = {value}")
    BUDGET.write_text("\n".join(text) + "\n")


def flat(document: Budget) -> Budget:
    """Return the tables of a budget by their whole names: TOML reads `[src.rates]` as a table in a
    table.
    """
    tables: Budget = {}
    for title, table in document.items():
        inner = {
            f"{title}.{name}": value for name, value in table.items() if isinstance(value, dict)
        }
        tables |= inner or {title: table}
    return tables


# The traces


@dataclass(frozen=True, slots=True)
class Call:
    """A call from one file into another, or a module's body (`name` is "<load>").

    `caller` "-" is the event loop.
    """

    at_ns: int
    thread: str
    caller: str
    file: str
    name: str

    @property
    def is_hop(self) -> bool:
        return self.name != "<load>" and self.caller != "-"


class Tracer:
    """An empty installation of skep in a folder of its own;
    every process started in it is traced.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.traces = folder / "traces"
        self.traces.mkdir(mode=0o700)
        places = {
            f"XDG_{name}": str(folder / name.lower())
            for name in ("CONFIG_HOME", "DATA_HOME", "STATE_HOME")
        }
        kept = {
            key: value
            for key, value in os.environ.items()
            if key not in ("XDG_RUNTIME_DIR", "SKEP_API_KEY")
        }
        hook = {
            "SKEP_TRACE": str(self.traces),
            "SKEP_TRACE_ROOT": str(SRC),
            "PYTHONPATH": str(HOOK),
        }
        self.env = {**kept, **places, **hook}

    def skep(self, *args: str, traced: bool = True) -> str:
        print(f"tracing: skep {' '.join(args)}", file=sys.stderr)
        env = self.env if traced else {**self.env, "SKEP_TRACE": ""}
        command = [sys.executable, "-m", "skep", *args]
        done = subprocess.run(
            command, env=env, cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(
                f"error: `skep {' '.join(args)}` ended with code {done.returncode}:\n{done.stderr}"
            )
        return done.stdout

    def calls(self, pid: int | None = None, *, engine: bool = False) -> list[Call]:
        """Return what was recorded, in process `pid` or in all: in those of skep, or with `engine`
        in fake engines.
        """
        found = []
        for path in self.traces.glob("*.tsv" if pid is None else f"{pid}.tsv"):
            argv, *lines = path.read_text().splitlines()
            if ("skep.testing." in argv) == engine:
                cells = (line.split("\t") for line in lines if line.count("\t") == 4)
                found += [Call(int(at_ns), *rest) for at_ns, *rest in cells]
        return found


def entered(calls: Iterable[Call]) -> dict[str, Any]:
    """Return the files of which functions were called, and how many modules were loaded."""
    calls = [*calls]
    files = sorted({call.file for call in calls if call.name != "<load>"})
    loaded = {call.file for call in calls if call.name == "<load>"}
    return {
        "files": len(files),
        "loaded": len(loaded),
        "hops": sum(call.is_hop for call in calls),
        "names": files,
    }


def busiest_turn(calls: Iterable[Call]) -> dict[str, Any]:
    """Return the turn of an event loop, from one call by the loop to the next, that has the most
    hops.
    """
    turns: list[list[Call]] = [[]]
    last: dict[str, list[Call]] = {}
    for call in calls:
        if call.caller == "-" or call.thread not in last:
            last[call.thread] = []
            turns.append(last[call.thread])
        last[call.thread].append(call)
    return entered(max(turns, key=lambda turn: sum(call.is_hop for call in turn)))


def trace() -> dict[str, dict[str, Any]]:
    """Run the four actions, each in an installation of its own."""
    found: dict[str, dict[str, Any]] = {}
    for action in (_trace_plan, _trace_hive, _trace_sweep):
        with tempfile.TemporaryDirectory(prefix="skep-size-") as folder:
            found |= action(Tracer(Path(folder)))
    return found


def _trace_plan(tracer: Tracer) -> dict[str, dict[str, Any]]:
    tracer.skep("plan", "qwen3.6-27b", "--gpu", "2x rtx-3090")
    return {"plan": entered(tracer.calls())}


def _trace_sweep(tracer: Tracer) -> dict[str, dict[str, Any]]:
    from skep.testing.process import FakeEngine

    counted = (
        "--concurrency",
        "1,2",
        "--tasks",
        "2",
        "--runs",
        "2",
        "--max-tokens",
        "4",
        "--warm-up",
        "quick",
    )
    with FakeEngine(slots=2, token_ms=2) as engine:
        tracer.skep("bench", "sweep", "--url", engine.url, *counted)
    return {"sweep": entered(tracer.calls())}


def _trace_hive(tracer: Tracer) -> dict[str, dict[str, Any]]:
    """`up`, `chat` and `state change`, of one hive: what is done for the request is left out of
    `up`.
    """
    served = '[[serve]]\nmodel = "fake-model"\nengine = "fake"\nslots = 2\n'
    (tracer.folder / "skep.toml").write_text(f"[gateway]\nport = 0\n{served}")
    hive = json.loads(tracer.skep("up", "-d", "--json"))
    try:
        up_ns = time.monotonic_ns()
        (gateway,) = (
            row
            for row in json.loads(tracer.skep("ps", "--json", traced=False))
            if row["kind"] == "gateway"
        )
        asked_ns = time.monotonic_ns()
        _ask(hive["url"])
        chat = _settled(
            lambda: entered(call for call in tracer.calls(gateway["pid"]) if call.at_ns > asked_ns)
        )
        done_ns = time.monotonic_ns()
    finally:
        tracer.skep("down")
    running_ns = min(call.at_ns for call in tracer.calls(engine=True))
    starting = (call for call in tracer.calls(hive["pid"]) if running_ns < call.at_ns < up_ns)
    around = (call for call in tracer.calls() if not up_ns < call.at_ns < done_ns)
    return {"up": entered(around), "chat": chat, "state change": busiest_turn(starting)}


def _ask(url: str) -> None:
    body = {
        "model": "fake-model",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 8,
        "stream": True,
    }
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())  # noqa: S310
    request.add_header("content-type", "application/json")
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        request, timeout=60
    ) as response:
        response.read()


def _settled(look: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what `look` says when it has named no new file for a second."""
    before: dict[str, Any] = {}
    while (now := look())["files"] != before.get("files"):
        before = now
        # The gateway accounts for requests in rounds, and offers no event to wait for.
        time.sleep(1.0)
    return now


# The command


def show(size: Size, traces: dict[str, dict[str, Any]]) -> None:
    print(f"{'package':16}{'modules':>8}{'lines':>9}")
    for package, number in size.lines.items():
        print(f"{package:16}{size.modules[package]:>8}{number:>9,}")
    print(f"{'tests':24}{size.tests:>9,}\n")
    print(
        f"{len(size.long)} modules over {LONG} lines: "
        f"{', '.join(f'{name} {n}' for name, n in size.long.items())}\n"
    )
    print(f"{len(size.small)} modules under {SMALL} code lines with one importer:")
    print("".join(f"  {name} <- {importer}\n" for name, importer in size.small.items()))
    print(f"{len(size.shared)} names stand for {sum(size.shared.values())} classes:")
    print("  " + ", ".join(f"{name} {number}" for name, number in size.shared.items()))
    if traces:
        print(f"\n{'action':16}{'files':>8}{'loaded':>8}{'hops':>8}")
    for action, counts in traces.items():
        print(f"{action:16}{counts['files']:>8}{counts['loaded']:>8}{counts['hops']:>8,}")


def show_readability(trees: Mapping[str, TreeCounts]) -> None:
    for name, counts in trees.items():
        print(f"\n{name}: {counts.nodes.total():,} nodes in {counts.code_lines:,} code lines")
        for title, rate in counts.rates().items():
            print(f"  {title.replace('_', ' '):26}{rate:>9,}")
        lists = {
            "dense modules": counts.dense_modules,
            "complex functions": counts.complex_functions,
        }
        for title, entries in {**lists, "long tests": counts.long_tests}.items():
            print(f"  {title:26}{len(entries):>9,}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document, with the names of the files"
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="also run the four actions and count the files they enter",
    )
    parser.add_argument(
        "--ratchet",
        action="store_true",
        help=f"lower the numbers in tests/{BUDGET.name}, raise none",
    )
    args = parser.parse_args()
    gc.disable()  # trees have no cycles, and a third of the time would go into looking for them
    size = measure()
    if args.ratchet:
        write_budget(ratchet(read_budget(), size, read_trees()))
        print(f"wrote tests/{BUDGET.name}")
        return 0
    traces = trace() if args.trace else {}
    if args.json:
        counted = {key: value for key, value in asdict(size).items() if key != "names"}
        print(json.dumps({**counted, **({"trace": traces} if traces else {})}, indent=2))
    else:
        show(size, traces)
        show_readability(read_trees())
    return 0


if __name__ == "__main__":
    sys.exit(main())
