"""A run held against the figures that a preset's author published: the same metric by the same clock, or why not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from statistics import fmean, median
from typing import Any

import msgspec
from msgspec.structs import replace

from skep.bench.compare import ComparedRun
from skep.bench.endpoint import engine_in
from skep.bench.metrics import LevelSummary, repeat_of, task_tok_s
from skep.catalog.models import find_geometry
from skep.catalog.names import squeeze
from skep.catalog.presets import (
    Need,
    Preset,
    Published,
    RunEnvironment,
    figures_lost,
    other_cards,
    stand_in_words,
    version_beside,
)
from skep.errors import UserError
from skep.paths import LOOPBACK
from skep.stats.percentiles import runs_interval
from skep.store.records import Request, StoredRun
from skep.units import Interval, number
from skep.wire.heads import parse_url

LENGTHS_WITHIN = 0.1  # of the published lengths: prompts are made to length, and miss it by a little
LENGTHS_WITHIN_TOKENS = 8.0
_FAMILY = {"embedded": "llamacpp"}


class PublishedShape(msgspec.Struct, frozen=True):
    input_tokens: int
    output_tokens: int

    def __str__(self) -> str:
        return f"{self.input_tokens} in, {self.output_tokens} out"


class Rerun(msgspec.Struct, frozen=True):
    """A benchmark to repeat: one shape, at the concurrencies its figures were published for."""

    shape: PublishedShape
    levels: tuple[int, ...]


class ObservedServer(msgspec.Struct, frozen=True):
    """The server that answered, as far as it describes itself; None if it does not."""

    model: str
    engine: str | None = None
    simulated: bool = False
    cards: tuple[str, ...] | None = None  # by the driver's names, of the machine it runs on


def observed(model: str, told: Mapping[str, Any], url: str, cards: Sequence[str], *, simulated: bool) -> ObservedServer:
    """`told`: what it says of itself. `cards`: this machine's, which are its own where it runs here."""
    named = next((str(word) for word in (told.get("engine"), told.get("build"), told.get("server")) if word), None)
    return ObservedServer(model, named, simulated, tuple(cards) if is_here(url) else None)


def observed_run(run: StoredRun) -> ObservedServer:
    cards = [str(gpu["name"]) for gpu in run.host.get("gpus") or ()]
    return observed(run.model, run.engine, run.url, cards, simulated=run.simulated)


def environment_of(run: StoredRun, env: Mapping[str, str]) -> RunEnvironment:
    """As far as it can be known through a URL: the driver is this machine's where the endpoint is."""
    driver, engine = run.host.get("driver_version") if is_here(run.url) else None, run.engine.get("engine")
    return RunEnvironment(engine_version=str(engine) if engine else None, driver_version=driver, env=env)


def is_here(url: str) -> bool:
    return parse_url(url)[0].host in LOOPBACK


class FigureComparison(msgspec.Struct, frozen=True):
    """One published figure against the run. `ratio` is measured over published; `why` says what stands against it."""

    row: int  # from 1, in the preset's order
    published: Published
    measured: float | None = None
    interval: Interval | None = None  # 95 %, of the mean over runs; None: fewer than three
    clock: str | None = None  # by which it was measured
    ratio: float | None = None
    ratio_interval: Interval | None = None
    why: str | None = None
    runs: tuple[float, ...] = ()  # the figure of each

    @property
    def fair(self) -> bool:
        return self.ratio is not None and self.why is None

    @property
    def share(self) -> str:
        """The ratio in words."""
        spread = self.ratio_interval
        told = f" ({100 * spread.low:.0f} to {100 * spread.high:.0f} %)" if spread else ""
        return f"{100 * (self.ratio or 0.0):.0f} %{told}"

    @property
    def figure(self) -> str:
        """What was published, in words."""
        figure = self.published
        version = f", {figure.engine_version}" if figure.engine_version else ""
        return f"{figure.tok_s:g} tok/s {figure.metric} at C={figure.concurrency}{version}"


class PresetComparison(msgspec.Struct, frozen=True):
    preset: str
    shape: PublishedShape | None
    rows: tuple[FigureComparison, ...]
    differences: tuple[str, ...]  # between what was published and what answered, true of all rows

    @property
    def best(self) -> FigureComparison | None:
        """The largest published figure that can be compared; output before other metrics."""
        fair = [row for row in self.rows if row.fair]
        return max(fair, key=lambda row: (row.published.metric == "output", row.published.tok_s), default=None)

    def document(self) -> dict[str, Any]:
        """Return the `AgainstPreset` of `skep schema bench sweep`."""
        told = msgspec.to_builtins(self)
        pairs = zip(self.rows, told.pop("rows"), strict=True)
        return {**told, "figures": [{"figure": one.pop("row"), **one, "fair": row.fair} for row, one in pairs]}

    def __str__(self) -> str:
        if self.best is not None:
            share, measured = self.best.share, number(self.best.measured, digits=1)
            return f"you reach {share}: {measured} of the published {self.best.figure}"
        rated = [row for row in self.rows if row.ratio is not None]
        if not rated:
            return f"none of the published figures of {self.preset} can be compared with this run"
        most = max(rated, key=lambda row: row.published.tok_s)
        return f"{most.share} of the published {most.figure}, under other conditions: see figure {most.row} above"


def shape_of(figure: Published) -> PublishedShape | None:
    if figure.input_tokens is None or figure.output_tokens is None:
        return None
    return PublishedShape(figure.input_tokens, figure.output_tokens)


def rerun_of(preset: Preset, row: int | None = None) -> Rerun:
    """Return the shape of that row; else the one with most rows, and of equals the first."""
    shapes = [shape_of(figure) for figure in preset.published]
    known = [place for place, shape in enumerate(shapes, start=1) if shape is not None]
    if row is not None and not 1 <= row <= len(shapes):
        hint = f"`{preset.name}` has {len(shapes)} published figures, numbered from 1"
        raise UserError(f"--shape-of {row} is not the number of a published figure", hint=hint)
    if row is not None and row not in known:
        told = f"figures with published lengths: {', '.join(map(str, known))}"
        hint = told if known else "none of its figures has published lengths"
        raise UserError(f"figure {row} of `{preset.name}` was published without its token lengths", hint=hint)
    if not known:
        what = "publishes no figures" if not shapes else "publishes no figure with the lengths it was measured with"
        raise UserError(f"the preset `{preset.name}` {what}", hint=f"`skep presets show {preset.name}` prints it")
    most_common = Counter(shape for shape in shapes if shape is not None).most_common(1)[0][0]
    chosen = shapes[row - 1] or most_common if row is not None else most_common
    pairs = zip(preset.published, shapes, strict=True)
    return Rerun(chosen, tuple(sorted({figure.concurrency for figure, shape in pairs if shape == chosen})))


def judge(preset: Preset, side: ComparedRun, seen: ObservedServer, missing: Collection[Need] = ()) -> PresetComparison:
    """Return every published figure in its order. `missing`: needs of the preset that are not known to be met here."""
    wrong_model = not same_model(preset, seen.model)
    lost = figures_lost(preset, list(missing))
    rows = []
    for place, figure in enumerate(preset.published, start=1):
        held = _held(place, figure, side)
        doubts = [held.why] if held.why else []
        if held.ratio is not None and seen.simulated:
            doubts.append("no model ran: this is a prediction")
        elif held.ratio is not None:
            doubts += ["another engine"] if _other_engine(preset, seen) else []
            published = figure.engine_version or preset.engine_version
            here = version_beside(published, seen.engine)
            doubts += [f"published with {published}, here {here}"] if here is not None else []
            doubts += [cards] if (cards := _other_cards(preset, seen)) else []
            if figure in lost:
                needed = [need for need in missing if need.id in figure.needs]
                named, ids = ", ".join(need.what for need in needed), ",".join(need.id for need in needed)
                doubts.append(f"needs {named}, which skep does not find here (if you have it: SKEP_HAVE={ids})")
            elif preset.stand_in:
                doubts.append("its checkpoint is not published")
        if wrong_model:
            held = replace(held, ratio=None, ratio_interval=None)
            doubts = [f"`{seen.model}` answered, but the figure is for `{preset.model}`"]
        rows.append(replace(held, why="; ".join(doubts) or None))
    shapes = [shape for level in side.summary.levels if (shape := _measured_shape(level)) is not None]
    agreed = PublishedShape(*(round(fmean(lengths)) for lengths in zip(*shapes, strict=True))) if shapes else None
    return PresetComparison(preset.name, agreed, tuple(rows), tuple(differences(preset, seen)))


def differences(preset: Preset, seen: ObservedServer) -> list[str]:
    found = []
    if not same_model(preset, seen.model):
        own = f"`{preset.model}`, served as `{preset.served_as}`"
        found.append(f"the endpoint serves `{seen.model}`, but the preset is for {own}")
    if _other_engine(preset, seen):
        found.append(f"the endpoint runs {seen.engine}, but the preset is for {preset.engine}")
    if cards := _other_cards(preset, seen):
        found.append(cards)
    if stand_in := stand_in_words(preset):
        found.append(stand_in)
    if any(figure.clock is None for figure in preset.published):
        found.append("not every published figure names its clock: skep compares those with the client's clock")
    if seen.simulated:
        found.append("the endpoint is SIMULATED: no model ran, so these figures are a prediction")
    return found


def check_model(preset: Preset, model: str, url: str) -> None:
    """Before anything is measured: what another model does says nothing about these figures."""
    if not same_model(preset, model):
        message = f"{url} serves `{model}`, but the preset `{preset.name}` is for `{preset.model}`"
        own = f'`skep presets new NAME --from {preset.name}` with served_as = "{model}"'
        hint = f"`skep up {preset.name}` serves it; if it is the same model under another name: {own}"
        raise UserError(message, hint=hint)


def same_model(preset: Preset, model: str) -> bool:
    """Return True if both are one model, by id, by checkpoint name or by the catalogue."""
    names = {squeeze(name.rpartition("/")[2]) for name in (preset.served_as, preset.model, preset.checkpoint)}
    if squeeze(model.rpartition("/")[2]) in names:
        return True
    known, own = find_geometry(model), find_geometry(preset.model)
    return known is not None and own is not None and known.id == own.id


def _other_engine(preset: Preset, seen: ObservedServer) -> bool:
    found = engine_in(seen.engine)
    return found is not None and found != _FAMILY.get(preset.engine, preset.engine) and not seen.simulated


def _other_cards(preset: Preset, seen: ObservedServer) -> str | None:
    return None if seen.cards is None or seen.simulated else other_cards(preset, seen.cards)


def _held(row: int, figure: Published, side: ComparedRun) -> FigureComparison:
    shape = shape_of(figure)
    if shape is None:
        return FigureComparison(row, figure, why="its lengths are not published")
    level = side.level(figure.concurrency)
    if level is None:
        same = any(_near(shape, _measured_shape(one)) for one in side.summary.levels)
        why = f"C={figure.concurrency} was not run" if same else f"another shape, {shape}: --shape-of {row} runs it"
        return FigureComparison(row, figure, why=why)
    found = _measured_shape(level)
    if not _near(shape, found):
        said = f"{found[0]:.0f} in, {found[1]:.0f} out" if found else "lengths that the server does not report"
        return FigureComparison(row, figure, why=f"published with {shape}, run with {said}: --shape-of {row} runs it")
    values, clock = _values(figure, list(side.repeats(figure.concurrency).values()), level)
    if not values:
        return FigureComparison(row, figure, why=f"the run has no {figure.metric} figure at C={figure.concurrency}")
    mean, interval = fmean(values), runs_interval(values)
    other = figure.clock not in (None, clock)
    doubts = [f"published by the {figure.clock}'s clock, measured by the {clock}'s"] if other else []
    doubts += ["the client was the limit here"] if level.client_limited else []
    doubts += [f"{level.failed} of {level.requests} requests failed"] if level.failed else []
    scaled = None
    if interval is not None:
        scaled = Interval(*(end / figure.tok_s for end in (interval.low, interval.estimate, interval.high)))
    doubt = "; ".join(doubts) or None
    return FigureComparison(row, figure, mean, interval, clock, mean / figure.tok_s, scaled, doubt, tuple(values))


def _values(figure: Published, runs: Sequence[Sequence[Request]], level: LevelSummary) -> tuple[list[float], str]:
    """Return one figure a run and the clock it was taken by. Engines report only their decode speed."""
    if figure.metric == "decode":
        if figure.clock == "engine":
            of_rows = ([row.engine.decode_tok_s for row in rows if row.ok and row.engine.decode_tok_s] for rows in runs)
            told = [median(speeds) for speeds in of_rows if speeds]
            told = told or ([level.engine_tok_s] if level.engine_tok_s else [])
            if told:
                return told, "engine"
        return [speed for rows in runs if (speed := task_tok_s(rows)) is not None], "client"
    made = [repeat_of(0, rows, figure.concurrency) for rows in runs]
    if figure.metric == "output":
        return [one.effective_tok_s for one in made if one.effective_tok_s > 0], "client"
    values = []
    for one, rows in zip(made, runs, strict=True):
        prompts = [row.prompt_tokens for row in rows if row.ok]
        if prompts and None not in prompts and one.wall_s > 0:
            values.append((one.output_tokens + sum(count or 0 for count in prompts)) / one.wall_s)
    return values, "client"


def _measured_shape(level: LevelSummary) -> tuple[float, float] | None:
    if level.prompt_tokens is None or level.output_tokens_each is None:
        return None
    return level.prompt_tokens, level.output_tokens_each


def _near(shape: PublishedShape, found: tuple[float, float] | None) -> bool:
    if found is None:
        return False
    pairs = zip((shape.input_tokens, shape.output_tokens), found, strict=True)
    return all(abs(there - here) <= max(LENGTHS_WITHIN_TOKENS, LENGTHS_WITHIN * there) for there, here in pairs)
