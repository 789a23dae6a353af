"""What runs and what is monitored, on a terminal: `skep ps`, `skep top`, previews, checks, targets
and their series.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter, methodcaller
from textwrap import wrap
from typing import Any

from skep.host.checks import CheckResult, HostFinding
from skep.monitor.describe import ago, ahead, in_words, percent
from skep.monitor.history import TargetComparisonRow
from skep.monitor.records import ProbeSample, ProbeTarget
from skep.monitor.schedule import format_interval
from skep.monitor.status import TargetStatus
from skep.monitor.targets import runs_of
from skep.report.columns import Column, as_count, at, plural, print_records, record_lines
from skep.report.liveview import MIDDLING_COLOUR, Line, Page, bar_cells, sparkline
from skep.report.terminal import note
from skep.supervisor.hive_status import HiveReadings, ReplicaStatus
from skep.units import Interval, format_bytes, format_seconds, number, printable

STYLES = {
    "up": "green",
    "ready": "green",
    "open": "bold red",
    "failed": "bold red",
    "backoff": "red",
    "silent": "red",
}
LEGEND = "█ active, ▒ releasing, · free slots; tok/s is approximate, over 10 s; – none yet"


def frame(readings: HiveReadings, page: Page, trouble: str | None = None) -> list[Line]:
    leave = "" if page.height is None else "; q quits"
    tables = [*_totals(readings, page), *_queues(readings, page), [], *_replicas(readings, page)]
    return [*_head(readings, page, trouble), *tables, [], *page.wrapped(LEGEND + leave, "dim")]


def _head(readings: HiveReadings, page: Page, trouble: str | None) -> list[Line]:
    status = readings.status
    remarks = [trouble] if trouble else []
    remarks += filter(None, map(_row_remark, status["rows"]))
    if not readings.gateway:
        remarks.append("the gateway reports no figures")
    up = ""
    if status.get("up_s") is not None:
        up = f"  up {format_seconds(int(status['up_s']))}"
    phase = (status["phase"], STYLES.get(status["phase"], MIDDLING_COLOUR))
    title = [
        ("skep  ", "bold"),
        (f"{status['url']}  ", ""),
        phase,
        (f"{up}  pid {status['pid']}", ""),
    ]
    return [title, *(line for text in remarks for line in page.wrapped(text, MIDDLING_COLOUR))]


def _row_remark(row: Mapping[str, Any]) -> str | None:
    """Return what is to be said of the gateway or the cluster; None where all is well."""
    is_gateway = row["kind"] == "gateway"
    if not is_gateway and row["kind"] != "cluster":
        return None
    was_restarted = is_gateway and row["restarts"]
    if row["state"] == "ready" and not row["why"] and not was_restarted:
        return None
    remark = f"{row['kind']} {row['state']}"
    if is_gateway:
        remark += f", restarts {row['restarts']}"
    if row["why"]:
        remark += f": {row['why']}"
    return remark


def _totals(readings: HiveReadings, page: Page) -> list[Line]:
    gateway = readings.gateway
    now = (
        f"{number(gateway.get('in_flight'), digits=0)} in flight, "
        f"{number(gateway.get('queued'), digits=0)} queued"
    )
    counts = {
        name.replace("_", " "): number(count, digits=0) for name, count in readings.ended.items()
    }
    outcomes = ", ".join(f"{count} {name}" for name, count in counts.items())
    speed = f"{number(readings.tok_s, digits=1)} tok/s  "
    if readings.tok_s:
        speed = f"about {speed}"
    speeds = [value for value in readings.speeds if value is not None]
    return [
        [
            ("requests  ", "bold"),
            (f"{now}, {number(readings.requests_per_s, digits=1)}/s ended", ""),
        ],
        [("so far    ", "bold"), (outcomes, "")],
        [
            ("tokens    ", "bold"),
            (speed, ""),
            (sparkline(speeds, page.width - 10 - len(speed), 1), "cyan"),
        ],
    ]


def _queues(readings: HiveReadings, page: Page) -> list[Line]:
    queues: dict[str, dict[str, int]] = readings.gateway.get("queues", {})
    if not queues:
        return []
    columns: list[Column[dict[str, Any]]] = [
        Column("model", "QUEUE", itemgetter("model"), right=False),
        *(
            Column(key, key.upper(), methodcaller("get", key), as_count)
            for key in next(iter(queues.values()))
        ),
    ]
    head, *lines = record_lines(
        columns, [{"model": model, **waiting} for model, waiting in queues.items()], page.width
    )
    return [[], [(head, "bold")], *([(line, "")] for line in lines)]


def _replicas(readings: HiveReadings, page: Page) -> list[Line]:
    """Return a table; why a replica is as it is stands below it."""
    columns: list[Column[ReplicaStatus]] = [
        Column("name", "REPLICA", lambda replica: replica.name, right=False),
        Column(
            "node",
            "NODE",
            lambda replica: replica.node or None,
            right=False,
            rank=2,
            optional=True,
        ),
        Column("model", "MODEL", lambda replica: replica.model or None, right=False, rank=4),
        Column("state", "STATE", lambda replica: replica.state, right=False),
        Column(
            "slots",
            "SLOTS",
            lambda replica: slot_bar(replica, max(8, page.width // 4)),
            right=False,
            rank=1,
        ),
        Column(
            "active",
            "ACTIVE",
            lambda replica: f"{number(replica.active, digits=0)}/{replica.slots}",
        ),
        Column(
            "tok_s",
            "TOK/S",
            lambda replica: readings.tok_s_of(replica.name),
            partial(number, digits=1),
        ),
        Column("restarts", "RESTARTS", lambda replica: replica.restarts, rank=3),
        Column("note", "NOTE", lambda replica: replica.mark, right=False),
    ]
    titles, *lines = record_lines(columns, readings.replicas, page.width)
    table: list[Line] = [[(titles, "bold")]]
    for replica, line in zip(readings.replicas, lines, strict=False):
        style = STYLES.get(replica.state, MIDDLING_COLOUR).replace("green", "")
        table += [[(line, style)], *page.wrapped(replica.why, style, "  ")]
    return [*table, *([(line, "dim")] for line in lines[len(readings.replicas) :])]


def slot_bar(replica: ReplicaStatus, max_cells: int) -> str:
    """Draw active, releasing and free slots; nothing where the gateway does not know the
    replica.
    """
    if replica.active is None:
        return ""
    active = min(replica.active, replica.slots)
    releasing = min(replica.releasing, replica.slots - active)
    parts = (active, releasing, replica.slots - active - releasing)
    cells = bar_cells(parts, replica.slots, min(replica.slots, max_cells))
    return "".join(sign * count for sign, count in zip("█▒·", cells, strict=True))


FIGURE_RANKS = {
    "pid": 4,
    "slots": 0,
    "busy": 0,
    "queued": 0,
    "restarts": 2,
}  # of a row, with their rank


def _remarks(row: dict[str, Any]) -> str:
    simulated = "simulated" if row.get("simulated") else None
    return "; ".join(filter(None, (simulated, row.get("why"))))


# What is shown of a row, with the node it stands on where some stand elsewhere
HIVE_COLUMNS: tuple[Column[dict[str, Any]], ...] = (
    Column("name", "NAME", lambda row: row["name"], right=False),
    Column(
        "node", "NODE", lambda row: row.get("node") or None, right=False, rank=1, optional=True
    ),
    Column("state", "STATE", lambda row: row["state"], right=False),
    *(
        Column(key, key.upper(), methodcaller("get", key), rank=rank)
        for key, rank in FIGURE_RANKS.items()
    ),
    Column("url", "URL", lambda row: row["url"] or None, right=False, rank=3),
    Column("note", "NOTE", _remarks, right=False),
)


def check_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what was checked for agents, a line for each model whose replicas do alike, and one
    for each warning.
    """
    lines: dict[str, None] = {}
    for row in rows:
        checks = list((row.get("checks") or {}).values())
        quiet = [check["text"] for check in checks if check["state"] != "warning"]
        if quiet:
            lines[f"{row['model']}: {'; '.join(quiet)}"] = None
        for check in checks:
            if check["state"] == "warning":
                text = "; ".join(filter(None, (check["text"], check.get("hint"))))
                lines[f"warning: {row['model']}: {text}"] = None
    return list(lines)


def print_nodes(cluster: dict[str, Any]) -> None:
    def state(node: Mapping[str, Any]) -> str:
        marks = [word for word in ("head", "here") if node[word]]
        return ", ".join(("alive" if node["alive"] else "dead", *marks))

    def free(node: Mapping[str, Any], key: str) -> str | None:
        if node["alive"]:
            return f"{node[f'free_{key}']:g}/{node[key]:g}"
        return None

    def memory(node: Mapping[str, Any]) -> str | None:
        sizes = [format_bytes(node[key]) for key in ("free_memory_bytes", "memory_bytes")]
        if node["alive"]:
            return " of ".join(sizes)
        return None

    def replicas(node: Mapping[str, Any]) -> str | None:
        return ", ".join(f"{row['name']} ({row['state']})" for row in node["replicas"]) or None

    columns: list[Column[Mapping[str, Any]]] = [
        Column("name", "NODE", lambda node: node["name"], right=False),
        Column("address", "ADDRESS", lambda node: node["address"], right=False, rank=1),
        Column("state", "STATE", state, right=False),
        Column("cpus", "CPUS FREE", lambda node: free(node, "cpus"), right=False, rank=2),
        Column("gpus", "GPUS FREE", lambda node: free(node, "gpus"), right=False),
        Column("memory", "MEMORY FREE", memory, right=False, rank=3),
        Column("replicas", "REPLICAS", replicas, right=False),
    ]
    print_records(columns, cluster["nodes"])
    for hive in cluster["hives"]:
        gateway = f"gateway {hive['gateway']}" if hive["gateway"] else "no gateway"
        note(f"deployment `{hive['name']}`: {gateway}")
    note(f"Ray {cluster['ray']}, head at {cluster['address']}")


RESTART_GATEWAY = ("address_share", "body_limit", "store_requests", "workers")
RELOAD_WORDS = {
    "added": "started",
    "removed": "stopped after their running requests",
    "changed": "restarted one after the other, after their running requests",
    "adjusted": "adjusted without a restart",
}


def say_reload(answer: dict[str, Any]) -> None:
    note(*(f"warning: {warning}" for warning in answer["warnings"]))
    for key, words in RELOAD_WORDS.items():
        if answer[key]:
            note(f"{words}: {', '.join(answer[key])}")
    for name in answer["left_out"]:
        if name in RESTART_GATEWAY:
            command = "skep replica restart gateway"
        else:
            command = "skep down && skep up -d"
        note(f"not applied yet: `{name}`; run `{command}`")
    if any(answer[key] for key in RELOAD_WORDS):
        note("settings and keys are reloaded")
    else:
        note("settings and keys are reloaded; replicas are unchanged")


def say_scale(answer: dict[str, Any]) -> None:
    for key, words in (("added", "added"), ("removed", "removed after their running requests")):
        if answer[key]:
            note(f"{words}: {', '.join(answer[key])}")
    change = f"{answer['before']} -> {answer['replicas']}"
    note(
        f"{answer['model']}: {change} replicas, until the next `skep replica reload` or `skep up`"
    )


def print_preview(preview: dict[str, Any]) -> None:
    """Print what `skep up` would do."""
    for served in preview["serve"]:
        for line in _preview_lines(served):
            print(line)  # noqa: T201
    for url in preview["upstream"]:
        print(f"upstream: {url}")  # noqa: T201
    models = [served["model"] for served in preview["serve"]]
    lines = endpoint_lines(preview["openai_base_url"], models, keyed=preview["keyed"])
    print("\n".join(lines))  # noqa: T201


def _preview_lines(served: Mapping[str, Any]) -> list[str]:
    """Return one model with its replicas, its weights, its engine and the engine's commands."""
    slots = f"{served['slots']} slots"
    if served["context"]:
        slots += f" of {served['context']:,} tokens each"
    engine = served["version"] or served["engine"]
    if served["install"]:
        engine += f", not installed: {served['install']}"
    return [
        f"model: {served['model']}, {plural(served['replicas'], 'replica')}, {slots}",
        f"weights: {_weights_words(served['weights'])}",
        f"engine: {engine}",
        *(f"  {command}" for command in served["commands"]),
    ]


def _weights_words(weights: Mapping[str, Any]) -> str:
    """Return where the weights come from, how large they are, and whether they are here where that
    is known.
    """
    words: str = weights["source"]
    if weights["bytes"] is not None:
        words += f", {format_bytes(weights['bytes'])}"
    if weights["there"]:
        words += ", already here"
    elif weights["there"] is not None:
        words += ", to be downloaded"
        if weights["free_bytes"] is not None:
            words += f" ({format_bytes(weights['free_bytes'])} free)"
    return words


def endpoint_lines(url: str, models: Sequence[str], *, keyed: bool) -> list[str]:
    """Say how clients reach it."""
    model = models[0] if models else "MODEL"
    key = "YOUR_KEY" if keyed else "none"
    openai = f"OpenAI SDK: OPENAI_BASE_URL={url} OPENAI_API_KEY={key} (model {model})"
    return [openai, "Claude Code: `skep agent claude`; `skep agent` lists the others"]


COLOURS = {
    CheckResult.OK: "green",
    CheckResult.ABSENT: "dim",
    CheckResult.WARNING: "yellow",
    CheckResult.PROBLEM: "red",
}


def print_findings(findings: list[HostFinding]) -> None:
    """Print a line for each, with its hint below; then what there is to do."""
    from rich.console import Console
    from rich.text import Text

    console = Console(soft_wrap=True, highlight=False)
    longest_name = max(len(finding.check) for finding in findings)
    indent = " " * (longest_name + 10)
    room = 10_000
    if console.is_terminal:
        room = console.width - len(indent)
    for finding in findings:
        mark = Text(f"{finding.verdict.value:8}", COLOURS[finding.verdict])
        detail = f"\n{indent}".join(wrap(finding.detail, room))
        console.print(mark + Text(f"{finding.check:{longest_name}}  {detail}"))
        if finding.hint:
            hint = f"\n{indent}".join(wrap(f"→ {finding.hint}", room))
            console.print(Text(f"{indent}{hint}", "dim"))
    console.print(Text(to_do_line(findings), "bold"))


def to_do_line(findings: Sequence[HostFinding]) -> str:
    checks = [finding.check for finding in findings if finding.verdict.wants_action]
    if not checks:
        return "nothing to do"
    return f"{plural(len(checks), 'thing')} to do: {', '.join(checks)}"


_rounded = "{:,.1f}".format


TARGET_COLUMNS: tuple[Column[ProbeTarget], ...] = (
    Column("name", "NAME", lambda target: target.name, right=False),
    Column("kind", "KIND", lambda target: target.kind, rank=3, right=False),
    Column("every_s", "EVERY", lambda target: target.every_s, format_interval, right=False),
    Column("url", "URL", lambda target: target.url, right=False),
    Column("model", "MODEL", lambda target: target.model or "the only one", rank=1, right=False),
    Column("runs", "RUNS", runs_of, rank=2, right=False),
    Column("key_env", "KEY IN", lambda target: target.key_env, rank=4, right=False),
    Column(
        "removed",
        "NOTE",
        lambda target: "" if target.removed_at is None else "removed",
        right=False,
    ),
)


def _of_first(unit: str, path: str) -> Callable[[TargetStatus], Any]:
    """Return what reads a part of the first series of a target that is told in this unit."""
    return lambda status: at(path)(status.first(unit))


def status_columns(now: float, *, running: bool) -> tuple[Column[TargetStatus], ...]:
    """Return how each target stands; `running`: there is a loop that makes the next probe."""
    return (
        Column("target", "TARGET", lambda status: status.target.name, right=False),
        Column("state", "STATE", lambda status: status.state, right=False),
        Column(
            "value",
            "NOW",
            _of_first("tok/s", "latest.value"),
            lambda value: f"{_rounded(value)} tok/s",
        ),
        Column("median_7d", "7 D MEDIAN", _of_first("tok/s", "week.median"), _rounded, rank=2),
        Column("ratio", "CHANGE", _of_first("tok/s", "ratio"), percent),
        Column(
            "ttft_ms",
            "TTFT",
            _of_first("ms", "latest.value"),
            lambda value: f"{_rounded(value)} ms",
            rank=1,
        ),
        Column(
            "probed",
            "PROBED",
            lambda status: "never" if status.last is None else ago(now - status.last.ended_at),
            right=False,
        ),
        Column(
            "next",
            "NEXT",
            lambda status: ahead(status.due_at - now) if running else None,
            rank=4,
            right=False,
        ),
        Column(
            "covered",
            "COVERED",
            lambda status: status.covered,
            lambda value: f"{100 * value:.0f} %",
            rank=5,
        ),
        Column("alerts", "ALERTS", lambda status: len(status.alerts), rank=3),
    )


SAMPLE_COLUMNS: tuple[Column[ProbeSample], ...] = (
    Column(
        "run",
        "RUN",
        lambda sample: f"{sample.heat} {sample.shape} c{sample.concurrency}",
        right=False,
    ),
    Column("tok_s", "TOK/S", lambda sample: sample.tok_s, _rounded),
    Column("engine_tok_s", "ENGINE", lambda sample: sample.engine_tok_s, _rounded, rank=1),
    Column(
        "effective_tok_s", "EFFECTIVE", lambda sample: sample.effective_tok_s, _rounded, rank=2
    ),
    Column("ttft_ms", "TTFT MS", lambda sample: sample.ttft_ms, _rounded),
    Column("output_tokens", "TOKENS", lambda sample: sample.output_tokens, rank=3),
    Column("error", "NOTE", lambda sample: sample.error or "", right=False),
)


_WIDEST = 100.0  # a ratio beyond which an interval tells nothing


def comparison_columns(a: str, b: str) -> tuple[Column[TargetComparisonRow], ...]:
    """Return two targets beside each other, a row for each kind of run; the ratio is B over A."""
    return (
        Column("run", "KIND OF RUN", lambda row: in_words(row.key), right=False),
        Column("a", printable(a), at("versus.a.median"), _rounded),
        Column("b", printable(b), at("versus.b.median"), _rounded),
        Column("ratio", "RATIO", at("versus.ratio.estimate"), "{:.2f}x".format),
        Column("interval", "95 %", lambda row: _interval(row.versus.ratio), rank=2, right=False),
        Column("cv_a", "CV A", at("versus.a.cv"), "{:.1%}".format, rank=3),
        Column("cv_b", "CV B", at("versus.b.cv"), "{:.1%}".format, rank=3),
        Column("values", "VALUES", _counts, rank=4),
        Column(
            "judgement",
            f"{printable(b)} IS",
            lambda row: row.versus.judgement.value,
            rank=1,
            right=False,
        ),
    )


def _interval(ratio: Interval | None) -> str | None:
    """Return the interval; None where there are too few values to say anything."""
    if ratio is None or ratio.high > _WIDEST:
        return None
    return f"{ratio.low:.2f} to {ratio.high:.2f}"


def _counts(row: TargetComparisonRow) -> str:
    counts = (0 if side is None else side.count for side in (row.versus.a, row.versus.b))
    return " / ".join(map(str, counts))
