"""Commands and options that are gone, and what to use instead."""

from collections.abc import Sequence

REMOVED_COMMANDS: dict[str, str] = {
    "bench import": "`skep bench import` was removed: measure the same endpoint with `skep bench sweep`",
    "bench judge": "`skep bench judge` was removed: `skep bench quality` and `bench mixed` judge answers as they run",
    "tune explain": "`skep tune explain` was removed: `skep tune show` says why each step was kept or left",
}
REMOVED_OPTIONS: dict[tuple[str, str], str] = {
    ("up", "--max-replicas"): "`--max-replicas` was removed: use `skep scale MODEL=N`",
    (
        "swarm run",
        "--serial-sample",
    ): "`--serial-sample` was removed: `skep bench serial-vs-swarm` measures the speedup over one task at a time",
    ("tune show", "--all"): "`--all` was removed: `skep tune show` lists every step",
    ("bench sweep", "--cluster"): "`--cluster` was removed: use `--processes N`, or run skep on each machine",
    ("bench serial-vs-swarm", "--cluster"): "`--cluster` was removed: use `--processes N`, or run skep on each machine",
    ("bench open", "--cluster"): "`--cluster` was removed: use `--processes N`, or run skep on each machine",
    ("bench classes", "--cluster"): "`--cluster` was removed: use `--processes N`, or run skep on each machine",
    ("bench replay", "--cluster"): "`--cluster` was removed: use `--processes N`, or run skep on each machine",
    ("bench ab", "--cluster"): "`--cluster` was removed: use `--processes N`, or run skep on each machine",
    ("bench matrix", "--cluster"): "`--cluster` was removed: use `--processes N`, or run skep on each machine",
    ("bench quality", "--cluster"): "`--cluster` was removed: leave it out, this machine makes the load",
    ("validate", "--calibrated"): "`--calibrated` was removed: `skep calibrate` fits the planner to your own machine",
    ("validate", "--in-sample"): "`--in-sample` was removed: constants are never fitted on a row's own source",
    ("validate", "--picture"): "`--picture` was removed: `skep validate POINTS.csv --json` has every point",
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
