"""From a goal to an answer: split, show, run, print. The answer goes to stdout or a file, all else to stderr."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from skep.bench.endpoint import Endpoint
from skep.cli.bench_common import Interrupted, Target, run_measuring
from skep.cli.output import note, print_json
from skep.cli.results import check_output, write_whole
from skep.cli.swarm_carry import Stopped, carry_out_here
from skep.cli.swarm_places import check_place, journal
from skep.cli.swarm_words import one_line
from skep.errors import EndpointError, UserError
from skep.places import user_paths
from skep.store.database import open_store
from skep.swarm.ask.files import Sources, find_sources
from skep.swarm.ask.merging import answer_of, ask_document, plan_document
from skep.swarm.ask.split import Sizes, Split, sizes_of, split_by_model, split_by_rule
from skep.swarm.ask.traits import CHARS_PER_TOKEN, Traits, chars_per_token, traits_of
from skep.swarm.journal import create_run
from skep.swarm.orders import Order
from skep.units import format_seconds

LONGEST_GOAL = 20_000  # characters; what is longer belongs into a file
LONGEST_NAME = 80
ROWS_SHOWN = 30


@dataclass(frozen=True, slots=True)
class AskWishes:
    goal: str
    target: Target
    order: Order
    files: tuple[str, ...]
    root: Path
    by_rule: bool | None  # None: by the size of the model
    plan_timeout_s: float
    merge: bool | None  # None: by the size of the model
    output: Path | None
    chunk_tokens: int | None
    max_tokens: int | None
    report: Path | None


@dataclass(frozen=True, slots=True)
class _Ready:
    """A split with all that its run is made of."""

    split: Split
    sizes: Sizes
    merge: bool
    model: str | None


def run_ask(wishes: AskWishes, *, dry_run: bool, as_json: bool) -> int:
    """Everything that can be wrong is found before the first task is sent."""
    if wishes.report is not None:
        check_output(wishes.report)
    if wishes.output is not None:
        check_place(wishes.output)
    example = 'skep swarm ask "Summarise each file" "docs/*.md"'
    if not wishes.goal:
        raise UserError("there is no goal", hint=example)
    if len(wishes.goal) > LONGEST_GOAL:
        hint = "put the material into files, and name them"
        raise UserError(f"the goal has {len(wishes.goal):,} characters, more than {LONGEST_GOAL:,}", hint=hint)
    if not wishes.files:
        raise UserError("no files are named", hint=f"{example}; for a list of prompts: `skep swarm run`")
    key = wishes.target.key()
    sources = find_sources(wishes.root, wishes.files)
    for name, why in sources.left_out[:5]:
        note(f"left out: {name} ({why})")
    if len(sources.left_out) > 5:
        note(f"left out: {len(sources.left_out) - 5} files more")
    try:
        ready = run_measuring(lambda: _split(wishes, sources))
    except Interrupted:
        raise Stopped("stopped before anything was sent") from None
    _show(ready)
    plan = plan_document(wishes.goal, ready.split, merge=ready.merge)
    if dry_run:
        if as_json:
            print_json(plan)
        return 0
    answer = None if wishes.output is None else str(wishes.output.absolute())
    with open_store(user_paths(os.environ).store) as store:
        run_id = create_run(
            store,
            [part.task(ready.sizes) for part in ready.split.parts],
            replace(wishes.order, ask=ask_document(plan, ready.sizes, answer)),
            url=wishes.target.url,
            model=ready.model,
            kind="ask",
            name=one_line(wishes.goal, LONGEST_NAME),
        )
    code = carry_out_here(user_paths(os.environ), run_id, key=key, report=wishes.report)
    give_answer(run_id, as_json=as_json)
    return code


def give_answer(run_id: str, *, as_json: bool) -> None:
    """To the file it was asked for in, or to stdout."""
    with journal() as swarm:
        run = swarm.run(run_id)
        answer = answer_of(run, swarm.results(run.id))
    ask = run.config["ask"]
    text = answer.with_notes().rstrip() + "\n"
    if ask.get("answer"):
        write_whole(Path(ask["answer"]), text)
        note(f"the answer is in {ask['answer']}")
    if as_json:
        counts = {"tasks": run.counts.total, "done": run.counts.done, "failed": run.counts.failed}
        told = {"answer": answer.text, "notes": answer.notes, "complete": answer.complete}
        print_json({"run": run.id, "goal": ask.get("goal"), **told, **counts, "output": ask.get("answer")})
    elif not ask.get("answer"):
        sys.stdout.write(text)
        sys.stdout.flush()


async def _split(wishes: AskWishes, sources: Sources) -> _Ready:
    endpoint = await _found(wishes)
    per_token, traits, model = CHARS_PER_TOKEN, Traits(), wishes.target.model
    if endpoint is not None:
        traits, model = await traits_of(endpoint), endpoint.model
        per_token = await chars_per_token(endpoint, [*sources.texts.values()])
    sizes = sizes_of(traits.context, per_token, chunk_tokens=wishes.chunk_tokens, max_tokens=wishes.max_tokens)
    by_rule = wishes.by_rule if wishes.by_rule is not None else traits.is_tiny
    if endpoint is None or by_rule:
        why = None if wishes.by_rule or endpoint is None else _too_small(endpoint.model, traits)
        split = split_by_rule(wishes.goal, sources, sizes, why)
    else:
        limit = format_seconds(wishes.plan_timeout_s)
        note(f"{endpoint.model} at {endpoint.url} is asked for a plan; by rule after {limit}")
        split = await split_by_model(
            wishes.goal,
            sources,
            sizes,
            endpoint,
            context=traits.context,
            timeout_s=wishes.plan_timeout_s,
            say=note,
        )
    merge = wishes.merge if wishes.merge is not None else split.by_model or not traits.is_tiny
    return _Ready(split, sizes, merge, model)


async def _found(wishes: AskWishes) -> Endpoint | None:
    """One that is down is waited for when the tasks run; a plan has to be had before."""
    try:
        return await wishes.target.find()
    except EndpointError as error:
        if not wishes.by_rule:
            raise
        note(f"{error.message}; it will be waited for")
        return None


def _too_small(model: str, traits: Traits) -> str:
    name = model.rpartition("/")[2]  # llama.cpp tells a path
    return f"{name} has {(traits.parameters or 0) / 1e6:,.0f}M parameters, too few to plan; --by-model asks it anyway"


def _show(ready: _Ready) -> None:
    """On stderr, as narration."""
    split, sizes = ready.split, ready.sizes
    count = "1 task" if len(split.parts) == 1 else f"{len(split.parts):,} tasks"
    who = "the model" if split.by_model else "rule"
    note(f"{count}, split by {who}" + (f" ({one_line(split.why, 300)})" if split.why else ""))
    for part in split.parts[:ROWS_SHOWN]:
        refs = [piece.ref for piece in part.pieces]
        more = f" and {len(refs) - 1} more" if len(refs) > 1 else ""
        tokens = int(part.chars / sizes.chars_per_token)
        note(f"  {one_line(part.id, 40)}: {one_line(part.objective, 70)}; {refs[0]}{more}, {tokens:,} tokens")
    if len(split.parts) > ROWS_SHOWN:
        note(f"  and {len(split.parts) - ROWS_SHOWN} more")
    prompts = int(sum(part.chars for part in split.parts) / sizes.chars_per_token)
    answers = "merged" if ready.merge else "one after the other"
    most = len(split.parts) * sizes.answer_tokens
    note(f"about {prompts:,} tokens to read and at most {most:,} to write; the answers: {answers}")
