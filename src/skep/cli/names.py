"""Names on the command line: the commands in their groups, other names for them, and what was removed."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

# Each command with its module in `skep.cli` and its line in `skep --help`. Only the module that is asked for is loaded.
GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Serve": {
        "up": ("serve", "Serve a model behind one endpoint; -d: in the background."),
        "down": ("serve", "Finish what is under way, then stop everything."),
        "ps": ("serve", "List what runs: replicas, slots, requests, waiting."),
        "top": ("top", "Watch it live: slots, queues, tokens per second."),
        "logs": ("serve", "Print the logs of the engines and of the gateway."),
        "gateway": ("gateway", "Put the gateway in front of servers that run already."),
    },
    "Decide": {
        "plan": ("plan", "Which layout fits these cards, and how fast it is with N agents."),
        "doctor": ("maintenance", "Check this machine: GPUs, drivers, memory, limits."),
        "presets": ("presets", "List measured setups, and what each needs."),
        "pull": ("maintenance", "Fetch a model's weights into the cache."),
    },
    "Measure": {
        "bench": ("bench", "Measure an endpoint under concurrency."),
        "runs": ("bench", "List, report, compare and export what was measured."),
        "tune": ("tune", "Find the fastest configuration of a model, step by step."),
        "monitor": ("monitor", "Probe endpoints on a schedule; alert when they change."),
    },
    "Use": {
        "swarm": ("swarm", "Run many tasks at once on an endpoint."),
        "web": ("web", "Serve the dashboard."),
        "mcp": ("mcp", "Serve the swarm as MCP tools."),
    },
}
MORE: dict[str, dict[str, tuple[str, str]]] = {
    "More": {
        "model": ("control", "Load, unload and swap models of a running hive."),
        "replica": ("control", "Drain, restart, scale and reload replicas."),
        "calibrate": ("calibrate", "Fit the planner to a running endpoint; validate it."),
        "catalog": ("catalog", "Show the known GPUs and models."),
        "export": ("export", "Print what starts a preset without skep."),
        "key": ("keys", "Manage the API keys of the gateway's clients."),
        "cluster": ("cluster", "Make machines one Ray cluster."),
        "store": ("maintenance", "Show, back up and clean the file with all runs."),
        "demo": ("maintenance", "Serve, measure and report the embedded model."),
    },
}
PART_OF = {
    name: part for groups in (GROUPS, MORE) for commands in groups.values() for name, (part, _) in commands.items()
}
PARTS = tuple(dict.fromkeys(PART_OF.values()))

# Other names, as people know them from elsewhere or from earlier versions. The longest beginning wins.
ALIASES = {
    "serve": "up",
    "stop": "down",
    "status": "ps",
    "models": "catalog models",
    "gpus": "catalog gpus",
    **{name: f"model {name}" for name in ("load", "unload", "swap")},
    **{name: f"replica {name}" for name in ("drain", "undrain", "restart", "scale", "reload")},
    "report": "runs report",
    "compare": "runs compare",
    "bench compare": "runs compare",
    "bench export": "runs export",
    "bench report": "runs report",
    "calibrations": "calibrate",
    "validate": "calibrate validate",
    "gc": "store gc",
    "service": "export service",
    "keys": "key",
}
BELOW_ALIASES = {"ls": "list", "rm": "remove", "forget": "remove", "delete": "remove"}  # the second word

_BENCH = {
    "--max-tokens": "--output-tokens",
    "--random-input-len": "--prompt-tokens",
    "--random-output-len": "--output-tokens",
    "--num-prompts": "--tasks",
    "--request-rate": "--rate",
    "--agents": "--concurrency",
    "--levels": "--concurrency",
    "--price": "--price-kwh",
}
_LAYOUT = {
    "--agents": "--concurrency",
    "--input-tokens": "--prompt-tokens",
    "--utilization": "--memory-share",
    "--gpu-memory-utilization": "--memory-share",
    "--max-model-len": "--context",
    "--max-num-seqs": "--slots",
    "--tensor-parallel-size": "--tp",
    "-tp": "--tp",
    "--pipeline-parallel-size": "--pp",
    "-pp": "--pp",
    "--kv-cache-dtype": "--kv",
    "--quantization": "--quant",
}
OPTION_ALIASES = {
    "bench": _BENCH,
    "calibrate": {**_BENCH, **_LAYOUT},
    "plan": {**_LAYOUT, "--price": "--price-card"},
    "up": _LAYOUT,
    "tune": {**_LAYOUT, "--max-tokens": "--output-tokens"},
    "swarm": {"--agents": "--concurrency", "--price": "--price-kwh", "--output-tokens": "--max-tokens"},
}
SEARCHES = ("--to-saturation", "--slo")  # with these, --max-concurrency is the end of a search, not vLLM's option


def plain_words(words: Sequence[str]) -> list[str]:
    """Return a command line with the present names instead of other ones."""
    given = list(words)
    for count in (2, 1):
        if len(given) >= count and (name := ALIASES.get(" ".join(given[:count]))):
            given[:count] = name.split()
            break
    if len(given) > 1 and given[0] in PART_OF:
        given[1] = BELOW_ALIASES.get(given[1], given[1])
    if given[:2] == ["presets", "list"]:
        del given[1]
    end = given.index("--") if "--" in given else len(given)
    names = OPTION_ALIASES.get(given[0], {}) if given else {}
    if given[:1] == ["bench"]:
        is_search = any(word.partition("=")[0] in SEARCHES for word in given)
        names = {**names, "--max-concurrency": "--concurrency-limit" if is_search else "--concurrency"}
    for place in range(1, end):
        option, equals, value = given[place].partition("=")
        given[place] = f"{names.get(option, option)}{equals}{value}"
    return given


def closest(word: str) -> str | None:
    """Return the command that is most like the word."""
    found = difflib.get_close_matches(word, [*PART_OF, *ALIASES], n=1)
    return found[0] if found else None


def help_page(*, everything: bool) -> str:
    """Return what `skep --help` prints; `everything`: also the commands that few need."""
    lines = [
        "Usage: skep COMMAND [OPTIONS]",
        "",
        "  One endpoint for a swarm of agents, on the cards you own: plan it, serve it,",
        "  measure it, tune it, watch it, and run the swarm.",
    ]
    for title, commands in ({**GROUPS, **MORE} if everything else GROUPS).items():
        lines += ["", f"{title}:", *(f"  {name:10} {line}" for name, (_, line) in commands.items())]
    lines += [
        "",
        "skep COMMAND --help explains a command" + ("." if everything else ", skep help --all lists the rest."),
        "Options: --version, --install-completion, -h/--help",
        "Example: skep up -d && skep bench sweep --concurrency 1,2,4 && skep runs report",
    ]
    return "\n".join(lines)


REMOVED_COMMANDS: dict[str, str] = {
    "bench import": "`skep bench import` was removed: measure the same endpoint with `skep bench sweep`",
    "bench judge": "`skep bench judge` was removed: `skep bench quality` and `bench mixed` judge answers as they run",
    "tune explain": "`skep tune explain` was removed: `skep tune show` says why each step was kept or left",
}
MEASURING = ("sweep", "serial-vs-swarm", "open", "classes", "replay", "ab", "matrix")
ONE_MACHINE = "`--cluster` was removed: use `--processes N`, or run skep on each machine"
REMOVED_OPTIONS: dict[tuple[str, str], str] = {
    ("up", "--max-replicas"): "`--max-replicas` was removed: use `skep replica scale MODEL=N`",
    (
        "swarm run",
        "--serial-sample",
    ): "`--serial-sample` was removed: `skep bench serial-vs-swarm` measures the speedup over one task at a time",
    ("tune show", "--all"): "`--all` was removed: `skep tune show` lists every step",
    **{(f"bench {name}", "--cluster"): ONE_MACHINE for name in MEASURING},
    ("bench quality", "--cluster"): "`--cluster` was removed: leave it out, this machine makes the load",
    (
        "calibrate validate",
        "--calibrated",
    ): "`--calibrated` was removed: `skep calibrate` fits the planner to your own machine",
    (
        "calibrate validate",
        "--in-sample",
    ): "`--in-sample` was removed: constants are never fitted on a row's own source",
    (
        "calibrate validate",
        "--picture",
    ): "`--picture` was removed: `skep calibrate validate POINTS.csv --json` has every point",
    ("swarm ask", "--tools"): "`--tools` was removed: an orchestrator of your own can give agents tools (docs/mcp.md)",
    ("swarm ask", "--plan"): "`--plan` was removed: for tasks of your own, `skep swarm run TASKS.jsonl`",
    ("swarm ask", "--plan-only"): "`--plan-only` was removed: use `--dry-run`, with `--json` as a document",
    ("swarm ask", "--edit"): "`--edit` was removed: for tasks of your own, `skep swarm run TASKS.jsonl`",
    ("swarm ask", "--yes"): "`--yes` was removed: nothing is asked any more; `--dry-run` shows the split first",
    ("swarm ask", "-y"): "`-y` was removed: nothing is asked any more; `--dry-run` shows the split first",
    ("swarm ask", "--orchestrator-url"): "`--orchestrator-url` was removed: --url splits, works and merges",
    ("swarm ask", "--orchestrator-model"): "`--orchestrator-model` was removed: --model splits, works and merges",
    ("swarm ask", "--orchestrator-key-env"): "`--orchestrator-key-env` was removed: use `--key-env`",
    ("gateway", "--cluster"): "`skep gateway --cluster` was removed: a hive has one gateway; use `skep up --cluster`",
    ("gateway", "--hive"): "`skep gateway --hive` was removed: a hive has one gateway; use `skep up --cluster --hive`",
}


def instead_of(words: Sequence[str]) -> str | None:
    """Return what to say of a command line that names a removed command or option; None: it names neither."""
    given = words[: words.index("--")] if "--" in words else words
    for command, message in REMOVED_COMMANDS.items():
        if list(given[: len(command.split())]) == command.split():
            return message
    for (command, option), message in REMOVED_OPTIONS.items():
        if list(given[: len(command.split())]) == command.split() and option in (word.split("=")[0] for word in given):
            return message
    return None
