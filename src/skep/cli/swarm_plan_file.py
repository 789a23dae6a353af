"""Plans as people handle them: read from a file, edited, shown as a table, asked about."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from skep.cli.output import TABLE_WIDTH, note
from skep.errors import UserError
from skep.swarm.ask.files import Sources
from skep.swarm.ask.plan import Plan, PlanTask, Sizes, plan_json
from skep.units import format_seconds

ROWS_SHOWN = 30
LARGEST_PLAN_BYTES = 16 << 20
LONGEST_CELL = 70
EVERY_S = 10.0


def read_plan_file(path: Path) -> Any:
    """JSON, or TOML by its name."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UserError(f"--plan `{path}`: {(error.strerror or 'cannot be read').lower()}") from None
    if len(data) > LARGEST_PLAN_BYTES:
        raise UserError(f"--plan `{path}` is too large for a plan", hint="`--plan-only` shows what one looks like")
    try:
        text = data.decode("utf-8-sig")
        return tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except (ValueError, RecursionError) as error:
        kind = "TOML" if path.suffix.lower() == ".toml" else "JSON"
        what = str(error) or "it is nested too deeply"
        raise UserError(f"--plan `{path}` is not {kind}: {what}", hint="`--plan-only` shows one") from None


def plan_text(plan: Plan) -> str:
    return json.dumps(plan_json(plan), ensure_ascii=False, indent=2) + "\n"


def edited(plan: Plan, check: Callable[[Any], Plan]) -> Plan:
    """In the user's editor, again and again until it can be carried out or the user gives up."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor or not sys.stdin.isatty():
        hint = "or save it with --plan-only -o plan.json, edit it, and give it back with --plan plan.json"
        what = "$EDITOR is not set" if not editor else "there is no terminal"
        raise UserError(f"the plan cannot be edited: {what}", hint=hint)
    with tempfile.TemporaryDirectory(prefix="skep-plan-") as folder:
        path = Path(folder) / "plan.json"
        path.write_text(plan_text(plan))
        while True:
            _open_editor(editor, path)
            try:
                return check(read_plan_file(path))
            except UserError as error:
                note(f"error: {error.message}")
                if not says_yes("edit it again? [Y/n] "):
                    raise


def _open_editor(editor: str, path: Path) -> None:
    try:
        done = subprocess.run([*shlex.split(editor), str(path)], check=False)
    except (OSError, ValueError) as error:
        raise UserError(f"the editor `{editor}` did not start: {error}", hint="set $EDITOR") from None
    if done.returncode:
        raise UserError(f"the editor `{editor}` ended with {done.returncode}", hint="nothing was run")


def asked(question: str) -> str:
    """On a terminal; Ctrl-C and the end of the input are a no."""
    # An event loop that has ended leaves SIGINT so that a read goes on in spite of it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stderr.write(question)
        sys.stderr.flush()
        line = sys.stdin.readline()
    except KeyboardInterrupt:
        line = ""
    finally:
        signal.signal(signal.SIGINT, before or signal.default_int_handler)
    if not line:
        sys.stderr.write("\n")
    return line.strip().lower() if line else "n"


def says_yes(question: str) -> bool:
    return asked(question) in ("", "y", "yes")


@contextlib.contextmanager
def plan_view(timeout_s: float) -> Iterator[Callable[[int], None]]:
    """How far the plan has come: a line that changes on a terminal, one every ten seconds elsewhere."""
    started = time.monotonic()
    on_terminal = sys.stderr.isatty()
    told = 0

    def watch(tokens: int) -> None:
        nonlocal told
        passed_s = time.monotonic() - started
        text = f"planning: {tokens:,} tokens after {passed_s:.0f} s, by rule after {format_seconds(timeout_s)}"
        if on_terminal:
            sys.stderr.write(f"\r{text}\x1b[K")
            sys.stderr.flush()
        elif passed_s // EVERY_S > told:
            told = int(passed_s // EVERY_S)
            note(text)

    try:
        yield watch
    finally:
        if on_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def show_plan(plan: Plan, sources: Sources, sizes: Sizes, *, slots: int | None, tok_s: float | None) -> None:
    """On stderr: the plan is narration until it is asked for."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    count = "1 task" if len(plan.tasks) == 1 else f"{len(plan.tasks):,} tasks"
    note(
        f"{count}, planned by {_planner(plan)}" + (f"; the answers: {_reduction(plan)}" if len(plan.tasks) > 1 else "")
    )
    if plan.made_by == "orchestrator" and plan.why:
        note(plan.why)
    same = len({task.objective for task in plan.tasks}) == 1 and len(plan.tasks) > 1
    if same:
        note(f"each: {_short(plan.tasks[0].objective, 200)}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = ["TASK", *([] if same else ["OBJECTIVE"]), "MATERIAL", "TOKENS", "TOOLS"]
    for column in columns:
        table.add_column(column, justify="right" if column == "TOKENS" else "left", no_wrap=True)
    for task in plan.tasks[:ROWS_SHOWN]:
        objective = [] if same else [_short(task.objective)]
        cells = [_short(task.id, 40), *objective, _material(task), f"{_tokens(task, sources, sizes):,}"]
        table.add_row(*map(Text, [*cells, ", ".join(task.tools) or "–"]))
    Console(stderr=True, width=TABLE_WIDTH, soft_wrap=True).print(table)
    if len(plan.tasks) > ROWS_SHOWN:
        note(f"and {len(plan.tasks) - ROWS_SHOWN} more")
    note(_estimate(plan, sources, sizes, slots, tok_s))


def _planner(plan: Plan) -> str:
    if plan.made_by == "fallback":
        return "rule" + (f", not by the orchestrator ({_short(plan.why, 300)})" if plan.why else "")
    return "the orchestrator" if plan.made_by == "orchestrator" else "you"


def _reduction(plan: Plan) -> str:
    words = {"merge": "merged", "concat": "one after the other", "vote": "put to the vote"}
    return words[plan.how] + (", and themselves below that" if plan.parts else "")


def _material(task: PlanTask) -> str:
    refs = [piece.ref for piece in task.pieces]
    if not refs:
        return "given" if task.input else "–"
    return _short(refs[0]) + (f" and {len(refs) - 1} more" if len(refs) > 1 else "")


def _tokens(task: PlanTask, sources: Sources, sizes: Sizes) -> int:
    chars = len(task.objective) + len(task.input or "") + len(task.boundaries or "")
    return int((chars + sum(len(sources.piece_text(piece)) for piece in task.pieces)) / sizes.chars_per_token)


def _estimate(plan: Plan, sources: Sources, sizes: Sizes, slots: int | None, tok_s: float | None) -> str:
    prompts = sum(_tokens(task, sources, sizes) for task in plan.tasks)
    most = len(plan.tasks) * sizes.answer_tokens
    text = f"about {prompts:,} tokens to read and at most {most:,} to write"
    if plan.how == "merge" and len(plan.tasks) > 1:
        text += ", merges aside"
    if slots and tok_s:
        at_once = min(slots, len(plan.tasks))
        best = most / (at_once * tok_s)
        text += f"; {format_seconds(best)} to write that, if {at_once} slots each do {tok_s:.0f} tok/s as one alone did"
    return text


def _short(text: str, most: int = LONGEST_CELL) -> str:
    squeezed = " ".join(text.split())
    return squeezed if len(squeezed) <= most else f"{squeezed[: most - 1]}…"
