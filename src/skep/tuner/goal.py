"""A goal as people type it, `effective_tok_s@4` or `task_tok_s@1>=90`, read into a `TuneGoal`. Knows no machine."""

from __future__ import annotations

import math
import re
from difflib import get_close_matches

from skep.catalog.names import did_you_mean
from skep.errors import UserError
from skep.stats.slo import SloLimits
from skep.tuner.records import METRICS, TuneGoal

MOST_AGENTS = 4096
LEAST_OUTPUT = 8  # tokens: with fewer there is no pace to measure
_GOAL = re.compile(r"\s*(?P<metric>[^@>=\s]*)\s*(?:@\s*(?P<agents>[^>=]*?))?\s*(?:>=(?P<target>.*))?")
_HINT = 'write it as --goal "effective_tok_s@4": the metric, and at how many agents; ">=300" behind it ends the search'


def parse_goal(
    goal: str, *, input_tokens: int = 512, output_tokens: int = 128, slo: str | None = None,
    min_context: int | None = None,
) -> TuneGoal:  # fmt: skip
    """The arguments are the flags of `skep tune`, as they were typed."""
    found = _GOAL.fullmatch(goal)
    if found is None or not found["metric"]:
        raise UserError(f"--goal `{goal}` is not understood", hint=_HINT)
    metric = _metric(found["metric"], goal)
    agents = _agents(found["agents"], goal)
    target = None if found["target"] is None else _target(found["target"], goal)
    if input_tokens < 1:
        raise UserError(f"--prompt-tokens {input_tokens} is no prompt", hint="1 or more")
    if output_tokens < LEAST_OUTPUT:
        hint = f"at least {LEAST_OUTPUT}: a pace is measured between the first and the last token"
        raise UserError(f"--output-tokens {output_tokens} is too short an answer", hint=hint)
    task = input_tokens + output_tokens
    if min_context is not None and min_context < task:
        hint = "raise it, leave it out, or lower --prompt-tokens and --output-tokens"
        raise UserError(f"--min-context {min_context} is less than a task's {task} tokens", hint=hint)
    promise = str(SloLimits.parse(slo)) if slo is not None else None
    return TuneGoal(metric, agents, input_tokens, output_tokens, target, promise, min_context)


def _metric(name: str, goal: str) -> str:
    wanted = name.casefold().replace("-", "_")
    if wanted in METRICS:
        return wanted
    near = get_close_matches(wanted, METRICS, n=1, cutoff=0.5)
    known = did_you_mean(near, f"known: {', '.join(METRICS)}")
    raise UserError(f"--goal `{goal}`: no metric is called `{name}`", hint=known)


def _agents(text: str | None, goal: str) -> int:
    if not text:
        raise UserError(f"--goal `{goal}` does not say at how many agents", hint=_HINT)
    if not re.fullmatch(r"[0-9]+", text):
        raise UserError(f"--goal `{goal}`: `{text}` is no number of agents", hint=_HINT)
    agents = int(text[:9])
    if not 1 <= agents <= MOST_AGENTS:
        raise UserError(f"--goal `{goal}`: {text} agents cannot be measured", hint=f"1 to {MOST_AGENTS}")
    return agents


def _target(text: str, goal: str) -> float:
    try:
        target = float(text)
    except ValueError:
        raise UserError(f"--goal `{goal}`: `{text.strip()}` is no target", hint=_HINT) from None
    if not math.isfinite(target) or target <= 0:
        hint = "a target is a number above 0, in the metric's unit"
        raise UserError(f"--goal `{goal}`: a target of {text.strip()} cannot be aimed at", hint=hint)
    return target
