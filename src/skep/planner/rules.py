"""The rules, one function each, and the one place that runs them all."""

from __future__ import annotations

from skep.planner import rules_engine as engine
from skep.planner import rules_formats as formats
from skep.planner import rules_layout as layout
from skep.planner.findings import Finding, Rule
from skep.planner.setup import Rig, Setup

RULES: tuple[Rule, ...] = (
    layout.cards_there,
    layout.engine_can,
    layout.heads_divide,
    layout.kv_heads_copied,
    layout.expert_parallel,
    layout.widths_divide,
    layout.pipeline,
    layout.mixed_cards,
    layout.links,
    layout.custom_all_reduce,
    layout.dense_without_nvlink,
    formats.engine_reads,
    formats.fp8_weights,
    formats.fp4_weights,
    formats.mxfp4_weights,
    formats.int8_weights,
    formats.half_precision,
    formats.int4_kernels,
    formats.kv_engine,
    formats.kv_fp8,
    formats.kv_int8,
    formats.kv_turboquant,
    formats.kv_nvfp4,
    engine.sane_numbers,
    engine.context_known,
    engine.eager_mode,
    engine.sequences_captured,
    engine.expert_workspace,
    engine.linear_scratch,
    engine.speculation_possible,
    engine.speculation_pays,
    engine.chunked_prefill,
    engine.prefix_cache,
    engine.driver,
)


def check(setup: Setup, rig: Rig) -> tuple[Finding, ...]:
    """Return the findings of all rules that apply, in the table's order."""
    if not rig.cards:
        return (
            Finding(
                "cards", "refused", f"{setup.layout} needs {setup.layout.cards} cards, the rig has 0", "arithmetic"
            ),
        )
    return tuple(finding for rule in RULES if (finding := rule(setup, rig)) is not None)


def refusal(findings: tuple[Finding, ...]) -> Finding | None:
    """The first that forbids the setup."""
    return next((finding for finding in findings if finding.verdict == "refused"), None)
