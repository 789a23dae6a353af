"""Writes planner/published.tsv: measurements of known models and cards, of tables and shipped
presets, a line each.

Beside it draft_failures.tsv: what the authors of presets could not start with drafts.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from generated import write_or_check

from skep.catalog.models import checkpoint_of, find_geometry
from skep.catalog.presets import Preset
from skep.config.presets import shipped_presets
from skep.planner.published import (
    USUAL_INPUT,
    USUAL_OUTPUT,
    DraftFailure,
    PublishedRow,
    cards_title,
)
from skep.planner.setup import Layout, known_quant
from skep.planner.validation import Unpredictable, read_case, read_rows, source_of

ROOT = Path(__file__).parent.parent
POINTS = ROOT / "tests/data/published_points.csv"
TABLE = ROOT / "src/skep/planner/published.tsv"
FAILURES = TABLE.with_name("draft_failures.tsv")
HEAD = "\t".join(PublishedRow.__struct_fields__) + "\n"


Key = tuple[object, ...]


def preset_figures() -> dict[Key, float]:
    """Of the shipped presets, also those whose author states no lengths: the plan shows them as
    such.
    """
    found: dict[Key, float] = {}
    for preset in shipped_presets().values():
        options = preset.options
        draft = options.draft
        layout = Layout(
            options.tp, options.pp, options.tp if options.ep else 1, preset.replicas * options.dp
        )
        link = preset.link if options.cards > 1 else None
        way = way_cells(
            layout, str(draft or ""), preset.engine, graphs=options.graphs is not False
        )
        head = (preset.model, preset.hardware, link or "", *way, quant_of(preset))
        for row in () if preset.history else preset.published:
            if row.metric == "output":
                metric = "effective"
            else:
                metric = row.metric
            if row.concurrency > preset.capacity or metric == "combined":
                continue  # with more agents somebody waited
            lengths = lengths_of(row.input_tokens, row.output_tokens, metric)
            key = (
                *head,
                row.concurrency,
                *lengths,
                "steady",
                0.0,
                metric,
                f"preset {preset.name}",
            )
            found[key] = max(found.get(key, 0.0), row.tok_s)
    return found


def way_cells(layout: Layout, drafts: str, engine: str, *, graphs: bool) -> tuple[str, ...]:
    return (str(layout), drafts, engine, "" if graphs else "eager")


def quant_of(preset: Preset) -> str:
    """Return the format of its checkpoint: of a GGUF file by its name, else as the catalogue or
    the engine has it.
    """
    word = re.search(r"-(I?Q\d\w*|F16|BF16)\.gguf$", preset.checkpoint, re.IGNORECASE)
    checkpoint = checkpoint_of(preset.checkpoint)
    names = (word and word[1], checkpoint and checkpoint.format, preset.options.quant)
    quants = (known_quant(name) for name in names if name)
    return next((quant.id for quant in quants if quant is not None), "")


def lengths_of(prompt: float | None, answer: float | None, metric: str) -> tuple[object, object]:
    """Return what a row states; nothing where one of the two is missing and its figure depends on
    both.
    """
    if metric == "decode":
        return int(prompt or USUAL_INPUT), int(answer or USUAL_OUTPUT)
    if prompt and answer:
        return (int(prompt), int(answer))
    return ("", "")


def table() -> str:
    """Of several alike from one source the fastest is kept: people publish what they tried before,
    too.
    """
    best: dict[Key, float] = {}
    for number, cells in read_rows(POINTS.read_text(encoding="utf-8"), POINTS.name):
        if "+" in cells["gpu"]:
            continue
        try:
            case = read_case(number, cells)
        except Unpredictable:
            continue
        setup = case.setup
        load = case.load
        if setup.slots is not None and load.concurrency > setup.slots * setup.layout.replicas:
            continue  # somebody waited
        stated = cells["input_tokens"] and cells["output_tokens"]
        if load.cached_share or load.rate_per_s or (case.metric == "effective" and not stated):
            continue
        if find_geometry(setup.model.id) is None:
            continue
        if setup.layout.tp > 1:
            said_link = cells["link"].partition(" ")[0]
        else:
            said_link = ""
        if setup.spec:
            drafts = f"{setup.spec.method}:{setup.spec.depth}"
        else:
            drafts = ""
        way = way_cells(setup.layout, drafts, setup.engine, graphs=setup.graphs)
        head = (setup.model.id, cards_title(case.rig.cards), said_link, *way, setup.quant.id)
        lengths = (int(load.input_tokens), int(load.output_tokens))
        source = source_of(cells["source_url"])
        key = (*head, load.concurrency, *lengths, load.shape, load.spread, case.metric, source)
        best[key] = max(best.get(key, 0.0), case.published)
    best |= preset_figures()
    lines = [
        "\t".join(map(str, (*key[:-1], f"{tok_s:g}", key[-1]))) for key, tok_s in best.items()
    ]
    return HEAD + "".join(f"{line}\n" for line in sorted(lines))


def draft_failures() -> str:
    presets = (preset for preset in shipped_presets().values() if preset.drafts_fail)
    rows = [
        (p.model, p.hardware, p.engine, p.drafts_fail or "", f"preset {p.name}") for p in presets
    ]
    return "".join("\t".join(cells) + "\n" for cells in (DraftFailure.__struct_fields__, *rows))


if __name__ == "__main__":
    sys.exit(write_or_check({TABLE: table, FAILURES: draft_failures}))
