"""Write the tables and the picture of docs/accuracy.md from the points in tests/data.

`--check` only compares.
"""

from __future__ import annotations

import csv
import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

from accuracy_picture import accuracy_picture
from generated import write_or_check
from published_curves import calibrated, curve_of, disagreements, honest_constants, pairs

from skep.planner.memory import defaults
from skep.planner.setup import part_bits, parts_of
from skep.planner.validation import (
    PublishedCase,
    Spread,
    ValidationPoint,
    ValidationReport,
    predicted,
    spread,
    validate,
)

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "accuracy.md"
DATA = ROOT / "tests" / "data"
OWN = "skep-h200-"
BEGIN = "<!-- figures: scripts/write_accuracy.py -->"
END = "<!-- end of figures -->"
_GROUPS = {  # in the order of the table, with their titles
    "C=1": "C=1", "C>1": "C>1", "dense": "dense", "moe": "MoE", ("one "
"card"): "one GPU", "tp": ("tensor "
"parallel"),
    "spec": "speculation", "engine vllm": "vLLM", ("engine "
"llamacpp"): "llama.cpp", "engine sglang": "SGLang",
}  # fmt: skip


def tables(plain: ValidationReport, tuned: Sequence[ValidationPoint]) -> str:
    each = {
        name: value for name, value in plain.by_source().items() if value.median_ape is not None
    }
    published = [
        value.median_ape or 0.0 for name, value in each.items() if not name.startswith(OWN)
    ]
    low, high = _interval(published)
    own = [point for point in plain.points if point.case.source.startswith(f"{OWN}vllm")]
    if plain.covered is not None:
        held = f"{plain.covered:.0%}"
    else:
        held = "none"
    between = (
        f"mean {fmean(published):.1%} (95 % interval {low:.0%} to {high:.0%}), median "
        f"{median(published):.1%}"
    )
    lines = [
        (
            f"The planner predicts {len(plain.points)} of {plain.rows} rows; the 80 % band "
            f"holds {held} of them."
        ),
        f"Counted by source, of {len(published)} published ones: {between}.",
    ]
    for kind in ("layout", "speculation"):
        count, right = pairs(plain.points, kind)
        lines.append(f"Pairs that differ in {kind} alone: {right} of {count} come out right.")
    apart = disagreements(plain.points)
    middle = fmean(math.sqrt(1 + one) - 1 for one in apart)
    lines.append(
        f"{len(apart)} pairs of sources tell of the same setup and differ by "
        f"{median(apart):.0%} ({apart[0]:.0%} to "
        f"{apart[-1]:.0%}): between them, a prediction misses each by {middle:.0%} on average."
    )
    lines += [
        "",
        "|rows|n|median error|p90|",
        "|---|---:|---:|---:|",
        _line("**all**", plain.spreads()["all"]),
    ]
    groups = groups_of(plain.points)
    lines += [_line(title, groups[name]) for name, title in _GROUPS.items() if name in groups]
    lines += [_line("own, vLLM on one H200", spread([point.error for point in own]))]
    for name, formula in _FORMULAS.items():
        off = spread(
            [abs(formula(point.case) / point.case.published - 1.0) for point in plain.points]
        )
        lines += [_line(f"*{name}*", off)]
    lines += [
        _line(f"calibrated, {name}", value)
        for name, value in groups_of(tuned).items()
        if name[0] == "C"
    ]
    lines += ["", "|source|n|median error|p90|", "|---|---:|---:|---:|"]
    ordered = sorted(each.items(), key=lambda one: -one[1].rows)
    return "\n".join([*lines, *(_line(name, value) for name, value in ordered)])


def _interval(errors: Sequence[float]) -> tuple[float, float]:
    """Of the mean, if other sources had been found: drawn again with replacement."""
    draw = random.Random(7)
    means = sorted(fmean(draw.choices(errors, k=len(errors))) for _ in range(2000))
    return means[50], means[-51]


def groups_of(points: Sequence[ValidationPoint]) -> dict[str, Spread]:
    names: dict[str, list[float]] = {}
    for point in points:
        for name in _names(point.case):
            names.setdefault(name, []).append(point.error)
    return {name: spread(errors) for name, errors in sorted(names.items())}


def _names(case: PublishedCase) -> tuple[str, ...]:
    setup = case.setup
    layout = case.setup.layout
    return (
        "C=1" if case.load.concurrency == 1 else "C>1",
        "moe" if setup.model.is_moe else "dense",
        "tp" if layout.tp > 1 else "one card" if layout.cards == 1 else "several",
        "spec" if setup.spec is not None else "no spec",
        f"engine {setup.engine}",
    )


def _line(name: str, value: Spread) -> str:
    return f"|{name}|{value.rows}|{value.median_ape or 0:.1%}|{value.p90_ape or 0:.1%}|"


def _bandwidth(case: PublishedCase) -> float:
    """Return what calculators on the web say: bandwidth over the model's size, times a constant,
    for each agent.
    """
    size = case.setup.model.params_total * case.setup.quant.nominal / 8
    return 0.55 * case.card.bandwidth_gbs * 1e9 * case.setup.layout.tp / size * _agents(case)


def _roofline(case: PublishedCase) -> float:
    """Return the slower of reading weights and KV once a step and computing the batch, at the data
    sheet's rates.
    """
    model = case.setup.model
    layout = case.setup.layout
    load = case.load
    parts = parts_of(model)
    bits = part_bits(case.setup.quant, model)
    if model.experts:
        routed = model.experts_per_token / model.experts
    else:
        routed = 0.0
    dense = parts.embedding * bits["ends"] + parts.small * bits["small"] + parts.mlp * bits["mlp"]
    active = (dense + parts.experts * routed * bits["experts"]) / 8
    each = max(1.0, _agents(case) / layout.replicas)
    kv = model.kv_bytes_per_token(case.setup.kv.bytes) * (
        load.input_tokens + load.output_tokens / 2
    )
    read = (active + each * kv) / (case.card.bandwidth_gbs * 1e9 * layout.tp)
    rate = (case.card.fp16_tflops or 50.0) * 1e12 * layout.tp
    if case.metric == "effective":
        prompt = load.input_tokens / load.output_tokens
    else:
        prompt = 0.0
    return _agents(case) / max(read, 2 * model.params_active * each * (1 + prompt) / rate)


def _agents(case: PublishedCase) -> float:
    """Return how many requests run at once: at most the engine's slots."""
    slots = case.setup.slots or defaults(case.setup.engine, case.card).slots
    if case.load.rate_per_s is not None:
        return float(min(slots, 16))
    return float(min(case.load.concurrency, slots * case.setup.layout.replicas))


# Tokens a second over all agents; agents share a replica's cards, replicas do not share anything.
_FORMULAS = {"bandwidth / size x 0.55": _bandwidth, "roofline": _roofline}


def rows() -> list[tuple[int, dict[str, str]]]:
    found: list[dict[str, str]] = []
    for path in sorted(DATA.glob("*_points.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            found += csv.DictReader(file)
    return list(enumerate(found))


def report() -> tuple[ValidationReport, list[ValidationPoint]]:
    found = rows()
    plain = validate(found, constants_of=honest_constants)
    curves = {row: curve_of(cells) for row, cells in found}
    tuned = calibrated((point.case, curves[point.case.row]) for point in plain.points)
    return plain, [
        predicted(case, honest_constants(case.source), tuning) for case, tuning in tuned
    ]


def page() -> str:
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{tables(*report())}\n{END}{rest.partition(END)[2]}"


def picture() -> str:
    plain, _ = report()
    error = plain.spreads()["all"].median_ape or 0.0
    subtitle = (
        f"{len(plain.points)} of {plain.rows} measured rows, each with constants not fitted "
        "on its source; "
        f"median |error| {error:.0%}; shaded: within 20 %"
    )
    return accuracy_picture(plain.points, "Predicted against measured", subtitle) or ""


if __name__ == "__main__":
    if "--check" in sys.argv:
        files = {PAGE: page}
    else:
        files = {PAGE: page, ROOT / "docs" / "images" / "accuracy.svg": picture}
    sys.exit(write_or_check(files))
