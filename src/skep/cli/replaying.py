"""`skep bench judge`: stored answers judged again, and held against what was said of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from skep.cli.benching import run_measuring
from skep.cli.output import note, print_json, print_table, progress_of
from skep.cli.results import existing
from skep.errors import UserError
from skep.quality.judging import Answered, Judge, needs_sandbox
from skep.quality.replaying import Replay, Replayed, answers_of, replay
from skep.records import Run, RunState
from skep.sandbox.opening import open_sandbox
from skep.verdicts import Verdict
from skep.workload.extraction import python_of, spoken

JUDGED = ("mixed", "quality", "tune-quality")
_UNJUDGED = {
    RunState.RUNNING: "not judged yet, as the run is still under way",
    RunState.DONE: "stored without a verdict",
    RunState.FAILED: "never judged, as the run was broken off",
    RunState.INCOMPLETE: "never judged, as the run was broken off",
}


def run_judge_command(store_path: Path, name: str, item: str | None, *, as_json: bool) -> int:
    """0: every verdict is what it was; 1: some differ, or an answer has no verdict, or a verdict no answer."""
    with existing(store_path) as store:
        run = store.run(name)
        check_kind(run)
        items, rows = store.items(run.id), store.requests(run.id)
        answered = answers_of(rows, items)
        verdicts = store.verdicts(run.id)
    if not answered and not verdicts:
        raise nothing_to_judge(run, sum(row.level > 0 for row in rows))
    if item is not None:
        answered, verdicts = of_item(answered, verdicts, item, run)
    found = run_measuring(lambda: judged_again(answered, verdicts))
    if as_json:
        print_json(replay_json(run, found))
        return 0 if found.confirmed else 1
    if item is not None and found.answers:
        print_item(found)
    else:
        print_replay(run, found)
    print_lost(found, {one.id for one in items})
    return 0 if found.confirmed else 1


def check_kind(run: Run) -> None:
    if run.kind not in JUDGED:
        hint = "`skep bench mixed` and `skep bench quality` make runs whose answers are judged"
        raise UserError(f"run `{run.id}` is of kind `{run.kind}`: its answers have no checkers", hint=hint)


def nothing_to_judge(run: Run, answers: int) -> UserError:
    """Why: it has only begun, what was asked is not stored, or it ended before anything was answered."""
    if answers:
        hint = "an item holds what was asked and how it is checked: without it there is nothing to judge by"
        return UserError(
            f"run `{run.id}` has {_counted(answers, 'answer')}, but not the items they belong to", hint=hint
        )
    if run.state is RunState.RUNNING:
        hint = "try again when it has ended"
        return UserError(f"run `{run.id}` is still under way: no answer is stored yet", hint=hint)
    why = f" ({harmless(run.error)})" if run.error else ""
    return UserError(
        f"run `{run.id}` has no answers", hint=f"it ended as {run.state.value}{why} before its first request did"
    )


def of_item(
    answered: Sequence[Answered], verdicts: Sequence[Verdict], item: str, run: Run
) -> tuple[list[Answered], list[Verdict]]:
    found = [one for one in answered if one.item.id == item]
    stored = [one for one in verdicts if one.item == item]
    if not found and not stored:
        names = sorted({one.item.id for one in answered})
        near = get_close_matches(item, names, 1)
        hint = (
            f"did you mean `{near[0]}`?" if near else f"it has {len(names)}, such as {', '.join(names[:3]) or 'none'}"
        )
        raise UserError(f"run `{run.id}` has no answer to an item `{item}`", hint=hint)
    return found, stored


async def judged_again(answered: Sequence[Answered], verdicts: Sequence[Verdict]) -> Replay:
    sandbox = open_sandbox() if needs_sandbox(one.item for one in answered) else None
    try:
        with progress_of("judging", len(answered)) as show:
            return await replay(answered, verdicts, Judge(sandbox), show)
    finally:
        if sandbox is not None:
            await sandbox.close()


def print_replay(run: Run, found: Replay) -> None:
    if found.differing:
        columns = ("C", "REPEAT", "ITEM", "STORED", "NOW", "WHY")
        rows = [
            [
                str(one.again.level),
                str(one.again.repeat + 1),
                harmless(one.again.item),
                worded(one.stored),
                worded(one.again),
                harmless(one.again.detail),
            ]
            for one in found.differing
        ]
        print_table(columns, rows, right=("C", "REPEAT"))
    for line in said_of(run, found):
        note(line)


def said_of(run: Run, found: Replay) -> list[str]:
    """How many verdicts are what they were; apart from them those of other rules, and the answers without one."""
    known = [one for one in found.answers if one.stored is not None and not one.of_other_rules]
    lines = []
    if known:
        agree = sum(one.agrees is True for one in known)
        lines.append(f"{run.id}: {agree:,} of {len(known):,} verdicts are what they were")
    if found.of_other_rules:
        lines.append(_said_of_other_rules(found.of_other_rules))
    if found.unjudged:
        passed = sum(one.again.passed for one in found.answers if one.stored is None)
        answers = _counted(found.unjudged, "answer", "was", "were")
        lines.append(f"{answers} {_UNJUDGED[run.state]}; now {passed:,} of them pass")
    return lines


def _said_of_other_rules(others: Sequence[Replayed]) -> str:
    rules = sorted({one.stored.checker or "not named" for one in others if one.stored is not None})
    age = "older" if all(one.of_older_rules for one in others) else "other"
    agree = sum(one.agrees is True for one in others)
    differ = len(others) - agree
    said = f"{agree:,} {'agrees' if agree == 1 else 'agree'}, {differ:,} {'differs' if differ == 1 else 'differ'}"
    return f"{_counted(len(others), 'verdict', 'is', 'are')} of {age} rules ({harmless(', '.join(rules))}): {said}"


def _counted(count: int, word: str, one: str = "", many: str = "") -> str:
    return f"{count:,} {word if count == 1 else f'{word}s'} {one if count == 1 else many}".rstrip()


def print_lost(found: Replay, items: Collection[str]) -> None:
    """Verdicts that nothing can be held against, by what is missing."""
    answerless = sum(one.item in items for one in found.lost)
    for count, what in ((len(found.lost) - answerless, "item"), (answerless, "answer")):
        if count:
            note(f"{_counted(count, 'stored verdict', 'has', 'have')} no {what} any more")


def worded(verdict: Verdict | None) -> str:
    if verdict is None:
        return "–"
    words = {None: "", True: ", keywords found", False: ", keywords missing"}[verdict.keywords]
    return f"{verdict.outcome.value}{words}"


def print_item(found: Replay) -> None:
    """What was asked, once; then every answer that differs from the others, with all that was said of it."""
    first = found.answers[0].answered
    _section(f"{first.item.id} ({first.item.checker.kind})", "")
    for message in first.item.messages:
        _section(message.get("role", "message"), message.get("content", ""))
    alike: dict[tuple[str | None, str | None], list[Replayed]] = {}
    for one in found.answers:
        alike.setdefault((one.answered.row.answer, one.answered.row.reasoning), []).append(one)
    for same in alike.values():
        _print_answer(same)


def _print_answer(same: Sequence[Replayed]) -> None:
    places = ", ".join(f"C={one.again.level} repeat {one.again.repeat + 1}" for one in same)
    row, verdict = same[0].answered.row, same[0].again
    if row.reasoning:
        _section(f"reasoning at {places}", row.reasoning)
    _section(f"answer at {places}", row.answer or f"(none: {row.error or 'nothing was said'})")
    code = (
        python_of(spoken(row.answer or "", row.reasoning).text) if same[0].answered.item.checker.is_executed else None
    )
    if code is not None:
        _section("code taken out of it", code)
    for one in same:
        rules = f", by {one.stored.checker or 'rules not named'}" if one.stored and one.of_other_rules else ""
        changed = "" if one.agrees is not False else f" (stored: {worded(one.stored)}{rules})"
        stored = " (never judged before)" if one.stored is None else changed
        detail = f": {one.again.detail}" if one.again.detail else ""
        _section(
            f"verdict at C={one.again.level} repeat {one.again.repeat + 1}: {worded(one.again)}{detail}{stored}", ""
        )
    if verdict.checks:
        rows = [
            ["passed" if check.passed else "FAILED", harmless(check.name), harmless(check.detail)]
            for check in verdict.checks
        ]
        print_table(("", "CHECK", "DETAIL"), rows)
    if verdict.keywords_missing:
        note(f"keywords missing: {', '.join(verdict.keywords_missing)}")


def _section(title: str, text: str) -> None:
    print(f"── {harmless(title)}")  # noqa: T201
    if text:
        print(f"{harmless(text).strip(chr(10))}\n")  # noqa: T201


def harmless(text: str) -> str:
    """A model's words without what would move a terminal's cursor or change its colours."""
    return "".join(one if one.isprintable() or one in "\n\t" else "\ufffd" for one in text.replace("\r\n", "\n"))


def replay_json(run: Run, found: Replay) -> dict[str, Any]:
    return {
        "run_id": run.id,
        "answers": len(found.answers),
        "agreeing": found.agreeing,
        "unjudged": found.unjudged,
        "differing": len(found.differing),
        "of_other_rules": len(found.of_other_rules),
        "lost": len(found.lost),
        "verdicts": [
            {
                "concurrency": one.again.level,
                "repeat": one.again.repeat,
                "index": one.again.index,
                "item": one.again.item,
                "agrees": one.agrees,
                "stored": _verdict_json(one.stored),
                "again": _verdict_json(one.again),
            }
            for one in found.answers
        ],
    }


def _verdict_json(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    return {
        "outcome": verdict.outcome.value,
        "detail": verdict.detail,
        "checks": [{"name": check.name, "passed": check.passed, "detail": check.detail} for check in verdict.checks],
        "keywords": verdict.keywords,
        "keywords_missing": list(verdict.keywords_missing),
        "checker": verdict.checker,
        "sandbox": verdict.sandbox,
    }
