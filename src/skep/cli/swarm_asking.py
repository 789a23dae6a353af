"""From a goal to an answer: plan, show, run, print. The answer goes to stdout or a file, all else to stderr."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from skep.bench.endpoint import Endpoint
from skep.cli.benching import Interrupted, Target, positive_seconds, run_measuring
from skep.cli.output import note, print_json
from skep.cli.results import check_output, write_whole
from skep.cli.swarm_carry import Stopped, carry_out_here
from skep.cli.swarm_places import check_place, journal
from skep.cli.swarm_plan_file import asked, edited, plan_text, plan_view, read_plan_file, show_plan
from skep.errors import EndpointError, UserError
from skep.places import user_paths
from skep.store.database import open_store
from skep.swarm.ask.asking import answer_of, ask_document, final_answer, first_tasks
from skep.swarm.ask.expand import expand, fallback_plan
from skep.swarm.ask.files import Sources, find_sources
from skep.swarm.ask.plan import TOOL_KINDS, Plan, Sizes, plan_json, sketch_of
from skep.swarm.ask.planning import make_plan, sizes_of
from skep.swarm.ask.traits import CHARS_PER_TOKEN, Traits, chars_per_token, traits_of
from skep.swarm.ask.work import work_maker
from skep.swarm.journal import create_run
from skep.swarm.orders import Order
from skep.units import format_seconds

LONGEST_GOAL = 20_000  # characters; what is longer belongs into a file
LONGEST_NAME = 80


@dataclass(frozen=True, slots=True)
class AskWishes:
    goal: str | None
    target: Target
    files: tuple[str, ...] = ()
    root: Path = Path()
    tools: str = "none"
    plan: Path | None = None
    by_rule: bool | None = None  # None: by the size of the model
    plan_timeout: str = "60s"
    edit: bool = False
    yes: bool = False
    output: Path | None = None
    orchestrator: Target | None = None
    agents: int | None = None
    chunk_tokens: int | None = None
    max_tokens: int | None = None
    tries: int = 4
    timeout: str = "10m"
    deadline: str = "10m"
    report: Path | None = None

    def tool_kinds(self) -> tuple[str, ...]:
        kinds = tuple(dict.fromkeys(one.strip() for one in self.tools.split(",") if one.strip() not in ("", "none")))
        unknown = [one for one in kinds if one not in TOOL_KINDS]
        if unknown:
            raise UserError(f"--tools `{unknown[0]}` is unknown", hint="files, code, files,code or none")
        return kinds

    def order(self, ask: dict[str, Any]) -> Order:
        return Order(
            agents=self.agents,
            tries=self.tries,
            timeout_s=positive_seconds(self.timeout, "--timeout", "10m"),
            deadline_s=positive_seconds(self.deadline, "--deadline", "10m"),
            key_env=self.target.key_env,
            ask=ask,
        )


@dataclass(frozen=True, slots=True)
class _Ready:
    """A plan with all that its tasks are made of."""

    plan: Plan
    sources: Sources
    sizes: Sizes
    room_chars: int
    model: str | None
    native_tools: bool | None
    slots: int | None
    tok_s: float | None


def run_ask(wishes: AskWishes, *, plan_only: bool, as_json: bool) -> int:
    """Everything that can be wrong is found before the first task is sent."""
    if wishes.report is not None:
        check_output(wishes.report)
    if wishes.output is not None:
        check_place(wishes.output)
    if wishes.plan is not None and wishes.by_rule is not None:
        how = "--by-rule" if wishes.by_rule else "--by-model"
        raise UserError(f"--plan and {how} name two plans", hint="leave one of them out")
    document = None if wishes.plan is None else read_plan_file(wishes.plan)
    goal = _goal(wishes, document)
    tools, key = wishes.tool_kinds(), wishes.target.key()
    wishes.order({})
    positive_seconds(wishes.plan_timeout, "--plan-timeout", "60s")
    sources = find_sources(wishes.root, wishes.files)
    for name, why in sources.passed_by[:5]:
        note(f"left out: {name} ({why})")
    if len(sources.passed_by) > 5:
        note(f"left out: {len(sources.passed_by) - 5} files more")
    try:
        ready = run_measuring(lambda: _ready(wishes, goal, sources, tools, document))
    except Interrupted:
        raise Stopped("stopped before anything was sent") from None
    ready = _looked_at(ready, wishes, goal, tools, plan_only=plan_only)
    if plan_only:
        _give_plan(ready.plan, wishes.output, as_json=as_json)
        return 0
    run_id = _created(ready, wishes, tools)
    with journal() as swarm:
        maker = work_maker(swarm.run(run_id))
    code = carry_out_here(user_paths(os.environ), run_id, key=key, report=wishes.report, work=maker)
    give_answer(run_id, as_json=as_json)
    return code


def give_answer(run_id: str, *, as_json: bool) -> None:
    """To the file it was asked for in, or to stdout."""
    with journal() as swarm:
        run = swarm.run(run_id)
        tasks, results = swarm.tasks(run.id), swarm.results(run.id)
    ask = run.config.get("ask") or {}
    text = final_answer(run, tasks, results).rstrip() + "\n"
    if ask.get("answer"):
        write_whole(Path(ask["answer"]), text)
        note(f"the answer is in {ask['answer']}")
    if as_json:
        answer = answer_of(run, tasks, results)
        counts = {"tasks": run.counts.total, "done": run.counts.done, "failed": run.counts.failed}
        told = {"answer": answer.text, "notes": list(answer.notes), "complete": answer.complete}
        print_json({"run": run.id, "goal": ask.get("goal"), **told, **counts, "output": ask.get("answer")})
    elif not ask.get("answer"):
        sys.stdout.write(text)
        sys.stdout.flush()


def _goal(wishes: AskWishes, document: Any) -> str:
    told = document.get("goal") if isinstance(document, dict) else None
    goal = wishes.goal or (told if isinstance(told, str) else None)
    if not goal or not goal.strip():
        raise UserError("there is no goal", hint='skep swarm ask "Summarise each file" --files "docs/*.md"')
    if len(goal) > LONGEST_GOAL:
        hint = "put the material into files, and name them with --files"
        raise UserError(f"the goal has {len(goal):,} characters, more than {LONGEST_GOAL:,}", hint=hint)
    return goal.strip()


async def _ready(wishes: AskWishes, goal: str, sources: Sources, tools: tuple[str, ...], document: Any) -> _Ready:
    asked_here = document is None and not wishes.by_rule and wishes.orchestrator is None
    endpoint = await _found(wishes, needed=asked_here)
    per_token, traits = CHARS_PER_TOKEN, Traits()
    if endpoint is not None:
        traits = await traits_of(endpoint)
        per_token = await chars_per_token(endpoint, sources) if sources.names else CHARS_PER_TOKEN
    sizes, room = sizes_of(
        traits.context, per_token, chunk_tokens=wishes.chunk_tokens, max_tokens=wishes.max_tokens, tools=bool(tools)
    )
    told = None if endpoint is None else endpoint.engine.get("slots")
    slots = told if isinstance(told, int) else None
    model = wishes.target.model if endpoint is None else endpoint.model
    if document is not None:
        plan = expand(sketch_of(document), goal, sources, sizes, tools)
        return _Ready(plan, sources, sizes, room, model, traits.tools, slots, None)
    planner, planner_traits = endpoint, traits
    if wishes.orchestrator is not None:
        planner = None if wishes.by_rule else await wishes.orchestrator.find()
        planner_traits = Traits() if planner is None else await traits_of(planner)
    merges = not planner_traits.is_tiny
    if planner is None or wishes.by_rule or (wishes.by_rule is None and planner_traits.is_tiny):
        why = None if wishes.by_rule or planner is None else _too_small(planner.model, planner_traits)
        plan = fallback_plan(goal, sources, sizes, tools, why, merges=merges)
        return _Ready(plan, sources, sizes, room, model, traits.tools, slots, None)
    timeout_s = positive_seconds(wishes.plan_timeout, "--plan-timeout", "60s")
    note(f"{planner.model} at {planner.url} is asked for a plan; by rule after {format_seconds(timeout_s)}")
    with plan_view(timeout_s) as watch:
        planned = await make_plan(
            goal,
            sources,
            sizes,
            planner,
            context=planner_traits.context,
            tools=tools,
            merges=merges,
            timeout_s=timeout_s,
            say=note,
            watch=watch,
        )
    tok_s = planned.tok_s if planner is endpoint else None
    return _Ready(planned.plan, sources, sizes, room, model, traits.tools, slots, tok_s)


def _too_small(model: str, traits: Traits) -> str:
    name = model.rpartition("/")[2]  # llama.cpp tells a path
    return f"{name} has {(traits.parameters or 0) / 1e6:,.0f}M parameters, too few to plan; --by-model asks it anyway"


async def _found(wishes: AskWishes, *, needed: bool) -> Endpoint | None:
    """One that is down is waited for when the tasks run; a plan has to be had before."""
    try:
        return await wishes.target.find()
    except EndpointError as error:
        if needed:
            raise
        note(f"{error.message}; it will be waited for")
        return None


def _looked_at(ready: _Ready, wishes: AskWishes, goal: str, tools: tuple[str, ...], *, plan_only: bool) -> _Ready:
    """Shown, edited where that is wanted, and on a terminal asked about."""

    def check(document: Any) -> Plan:
        return expand(sketch_of(document), goal, ready.sources, ready.sizes, tools)

    plan = edited(ready.plan, check) if wishes.edit else ready.plan
    asks = sys.stdin.isatty() and sys.stderr.isatty() and not (wishes.yes or wishes.plan or plan_only or wishes.edit)
    while True:
        show_plan(plan, ready.sources, ready.sizes, slots=ready.slots, tok_s=ready.tok_s)
        said = asked("run it? [Y/n/e(dit)] ") if asks else "y"
        while said not in ("", "y", "yes", "n", "no", "e", "edit"):
            said = asked("y, n or e? ")
        if said in ("n", "no"):
            raise Stopped("nothing was run", hint="--plan-only prints the plan, --plan FILE carries one out")
        if said not in ("e", "edit"):
            break
        plan = edited(plan, check)
    return replace(ready, plan=plan)


def _give_plan(plan: Plan, output: Path | None, *, as_json: bool) -> None:
    if output is not None:
        write_whole(output, plan_text(plan))
        note(f"the plan is in {output}; `skep swarm ask --plan {output}` carries it out")
    if output is None or as_json:
        print_json(plan_json(plan))


def _created(ready: _Ready, wishes: AskWishes, tools: tuple[str, ...]) -> str:
    other = wishes.orchestrator
    ask = ask_document(
        ready.plan,
        ready.sizes,
        root=str(ready.sources.root),
        tools=tools,
        context_chars=ready.room_chars,
        native_tools=ready.native_tools,
        answer=None if wishes.output is None else str(wishes.output.absolute()),
        orchestrator=None if other is None else {"url": other.url, "model": other.model, "key_env": other.key_env},
    )
    tasks = first_tasks(ready.plan, ready.sources, ready.sizes)
    name = " ".join(ready.plan.goal.split())
    name = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
    with open_store(user_paths(os.environ).store) as store:
        return create_run(
            store, tasks, wishes.order(ask), url=wishes.target.url, model=ready.model, kind="ask", name=name
        )
