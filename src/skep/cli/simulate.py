"""`skep up --simulate`: from a model and cards to the layout planned for them, and what its replicas are told.

What is read and how it is chosen is `skep plan`'s: the same words give the same plan.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import Any

from skep.cli.options import ServeOptions
from skep.cli.output import note
from skep.deploy.plan_request import PlanFlags, engines_of, goal_of, pins_of, read_model, read_rigs
from skep.engines.simulated import plan_of
from skep.errors import UserError
from skep.paths import user_paths
from skep.planner.choose import Plan, choose, fits_nowhere
from skep.planner.memory import weights_bytes
from skep.planner.rigs import ResolvedRig

AGENTS = 4  # to plan for, where nobody says how many: as `skep plan` has it
INPUT_TOKENS, OUTPUT_TOKENS = 1024, 512


def plan_flags(options: ServeOptions, model: str, *, agents: int) -> PlanFlags:
    """As `skep plan` would get them. A context too small for the usual task is planned for tasks that it holds."""
    usual = INPUT_TOKENS + OUTPUT_TOKENS
    share = min(1.0, (options.context or usual) / usual)
    return PlanFlags(
        model,
        agents=agents,
        gpu=options.gpu,
        input_tokens=int(INPUT_TOKENS * share),
        output_tokens=int(OUTPUT_TOKENS * share),
        engine=(options.engine,) if options.engine is not None else (),
        utilization=options.memory_share,
        **options.named("link", "quant", "kv", "spec", "tp", "replicas", "slots", "context"),
    )


def simulated_flags(options: ServeOptions) -> PlanFlags:
    if options.model is None:
        raise UserError("--simulate wants a model", hint="`skep catalog models` lists those that are known")
    _refuse_preset(options.model)
    if len(options.gpu) > 1:
        hint = 'mixed cards are written as --gpu "rtx-5090 + rtx-3090"'
        raise UserError(f"--simulate serves one rig, {len(options.gpu)} --gpu were given", hint=hint)
    agents = options.agents or max(AGENTS, (options.slots or 1) * (options.replicas or 1))
    return plan_flags(options, options.model, agents=agents)


def _refuse_preset(name: str) -> None:
    from skep.config.presets import find_preset

    preset = find_preset(name, user_paths(os.environ).config / "presets")
    if preset is not None:
        hint = f'simulate its model: skep up {preset.model} --gpu "{preset.hardware}" --simulate'
        raise UserError(f"`{name}` is a preset, and --simulate wants a model", hint=hint)


def simulated_serve(options: ServeOptions) -> tuple[str, dict[str, Any]]:
    """Return the model's id and what a `Serve` of it is given, from the best plan. Says which it is."""
    plan = best_plan(simulated_flags(options))
    setup, found = plan.setup, plan.rated.prospect
    model = setup.model
    assert setup.context is not None
    words = f"{setup.quant.title}, KV {setup.kv.title}"
    words += f", {setup.spec}" if setup.spec is not None else ""
    about = f"{model.id} {words}, {setup.layout} on {plan.rated.rig.title}, as {setup.engine}"
    weights = weights_bytes(model, setup.quant)
    told = plan_of(found, context_tokens=setup.context, about=about, weight_bytes=weights)
    note(f"simulating {about}: {setup.layout.replicas} x {found.slots} slots of {setup.context} tokens; no model runs")
    serve = {
        "engine": "simulated",
        "replicas": setup.layout.replicas,
        "slots": told.slots,
        "context_tokens": told.context_tokens,
        "extra": ("--plan", told.to_json()),
        "about": f"simulated: {about}",
    }
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model.id), serve


def best_plan(flags: PlanFlags, rig: ResolvedRig | None = None, *, say: Callable[[str], None] = note) -> Plan:
    """On this rig; None: as the flags name it, or this machine."""
    goal, model = goal_of(flags), read_model(flags.model)
    if rig is None:
        (rig,) = read_rigs(flags, user_paths(os.environ).store)
    for line in (*model.notes, *rig.notes):
        say(line)
    pins, engines = pins_of(flags, model), engines_of(flags, model, rig)
    choice = choose(model.geometry, rig.rig, goal, pins, engines=engines, scale=False)
    if not choice.plans:
        raise fits_nowhere(model.geometry, choice, goal, pins, engines[0])
    return choice.plans[0]
