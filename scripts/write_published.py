"""Writes planner/published.tsv: measurements of known models and cards, of tables and shipped presets, a line each."""

from __future__ import annotations

import sys
from pathlib import Path

from generated import write_or_check

from skep.catalog.models import find_geometry
from skep.config.presets import shipped_presets
from skep.deploy.plan_request import way_of
from skep.planner.setup import Layout, Speculation
from skep.planner.validation import Unpredictable, read_case, read_rows, source_of

ROOT = Path(__file__).parent.parent
POINTS, TABLE = ROOT / "tests/data/published_points.csv", ROOT / "src/skep/planner/published.tsv"
HEAD = "model\tcards\tway\tquant\tconcurrency\tinput_tokens\toutput_tokens\tshape\tspread\tmetric\ttok_s\tsource\n"


def preset_figures() -> dict[tuple[object, ...], float]:
    """Of the shipped presets; a stream's own rate hardly depends on its lengths, every other must state them."""
    found: dict[tuple[object, ...], float] = {}
    for preset in shipped_presets().values():
        options, draft = preset.options, preset.options.draft
        layout = Layout(options.tp, options.pp, options.tp if options.ep else 1, preset.replicas * options.dp)
        way = way_of(layout, Speculation(draft.method, draft.depth) if draft else None, preset.engine)
        for row in () if preset.history else preset.published:
            metric = "effective" if row.metric == "output" else row.metric
            stated = row.input_tokens is not None and row.output_tokens is not None
            if row.concurrency > preset.capacity or metric == "combined" or (metric == "effective" and not stated):
                continue  # with more agents somebody waited
            tokens = (row.concurrency, row.input_tokens or 128, row.output_tokens or 512)
            key = (preset.model, preset.hardware, way, "", *tokens, "steady", 0.0, metric, f"preset {preset.name}")
            found[key] = max(found.get(key, 0.0), row.tok_s)
    return found


def table() -> str:
    """Of several alike from one source the fastest is kept: people publish what they tried before, too."""
    best: dict[tuple[object, ...], float] = {}
    for number, cells in read_rows(POINTS.read_text(encoding="utf-8"), POINTS.name):
        if "+" in cells["gpu"]:
            continue
        try:
            case = read_case(number, cells)
        except Unpredictable:
            continue
        setup, load = case.setup, case.load
        if setup.slots is not None and load.concurrency > setup.slots * setup.layout.replicas:
            continue  # somebody waited
        stated = cells["input_tokens"] and cells["output_tokens"]  # a stream's own rate hardly depends on them
        if (
            load.cached_share
            or load.rate_per_s
            or find_geometry(setup.model.id) is None
            or (case.metric == "effective" and not stated)
        ):
            continue
        tokens = (load.concurrency, int(load.input_tokens), int(load.output_tokens))
        count = len(case.rig.cards)
        cards = f"{count}x {case.card.id}" if count > 1 else case.card.id
        source = source_of(cells["source_url"])
        key = (
            setup.model.id,
            cards,
            way_of(setup.layout, setup.spec, setup.engine),
            setup.quant.id,
            *tokens,
            load.shape,
            load.spread,
            case.metric,
            source,
        )
        best[key] = max(best.get(key, 0.0), case.published)
    best |= preset_figures()
    lines = ["\t".join(map(str, (*key[:-1], f"{tok_s:g}", key[-1]))) for key, tok_s in best.items()]
    return HEAD + "".join(f"{line}\n" for line in sorted(lines))


if __name__ == "__main__":
    sys.exit(write_or_check({TABLE: table}))
