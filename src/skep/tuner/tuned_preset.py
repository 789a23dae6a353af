"""A stage of a tuning as a preset of the user's own, which `skep up NAME` serves."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path

from msgspec.structs import replace

from skep.catalog.presets import Preset, Published
from skep.config.presets import check_name, find_preset, parse_preset, preset_toml, presets_folder
from skep.errors import SkepError, UserError
from skep.files import write_whole
from skep.paths import Paths
from skep.tuner.knobs import apply_config
from skep.tuner.records import TuneStage, Tuning, changes_words
from skep.tuner.setup import base_of
from skep.tuner.store import TuningRecord, TuningStore
from skep.tuner.summary import KEPT, accepted, best_of, figure_words, unit_of

LONGEST_NAME = 80


def tuned_preset(tuning: Tuning, stage: TuneStage, baseline: TuneStage, name: str) -> Preset:
    """The stage's configuration, with what it was measured as. The figures of the base's author are not its own."""
    base, day = base_of(tuning), datetime.fromtimestamp(tuning.created_at, UTC).date().isoformat()
    mark = "SIMULATED, " if tuning.simulated else ""
    notes = [
        f"{mark}tuned for {tuning.aim} ({tuning.aim.shape}) on {tuning.rig}",
        f"against the baseline: {changes_words(stage.config, baseline.config)}",
    ]
    if stage.decision not in KEPT:
        notes.append(f"step {stage.number} of its tuning, which was not kept: {stage.decision.value}")
    if stage.figure is not None:
        how = "SIMULATED, not measured" if tuning.simulated else "measured"
        notes.append(f"{how}: {figure_words(stage.figure)} {unit_of(tuning)}, 95 % interval")
    published: tuple[Published, ...] = ()
    if not tuning.simulated and stage.figure is not None and tuning.aim.metric == "effective_tok_s":
        # What `skep bench sweep --against-preset` can hold itself against: real, and of output over wall time.
        load = (tuning.aim.concurrency, tuning.aim.input_tokens, tuning.aim.output_tokens)
        runs = f"{stage.readings} readings in {stage.starts} starts" if stage.starts else None
        measured = Published(stage.figure.estimate, "output", *load, "client", runs=runs)
        published = (replace(measured, ttft_ms=stage.ttft_ms, tpot_ms=stage.tpot_ms),)
    return replace(
        apply_config(base, stage.config),
        name=name,
        title=f"{tuning.model}, {mark}tuned for {tuning.aim}",
        source=f"skep tune {tuning.id}, skep {tuning.skep_version}",
        date=day,
        published=published,
        notes=(*notes, *base.notes),
        origin="",
    )


def stage_for(tuning: Tuning, stages: Sequence[TuneStage], number: int | None) -> TuneStage:
    """Return the best, or that stage of the ladder."""
    if number is None:
        if (best := best_of(stages)) is None:
            hint = f"`skep tune show {tuning.id}` says why"
            raise UserError(f"tuning `{tuning.id}` has measured nothing that could be exported", hint=hint)
        return best
    if (found := next((stage for stage in stages if stage.number == number), None)) is None:
        last = f"0 to {stages[-1].number}" if stages else "none"
        raise UserError(f"tuning `{tuning.id}` has no step {number}", hint=f"there are {last}")
    return found


def write_preset(
    tuning: Tuning, stages: Sequence[TuneStage], name: str, paths: Paths, *, stage: int | None = None,
    overwrite: bool = False,
) -> Path:  # fmt: skip
    """Into the user's folder, where `skep up NAME` finds it. What could not be read back is not written."""
    folder = presets_folder(paths)
    path = folder / f"{check_name(name)}.toml"
    text = preset_toml(tuned_preset(tuning, stage_for(tuning, stages, stage), stages[0], name))
    try:
        parse_preset(text, name, str(path))
    except UserError as error:
        why = error.message.rpartition(f"{path}:")[2]
        raise SkepError(f"this configuration cannot be a preset: {why}", hint=error.hint) from None
    folder.mkdir(parents=True, exist_ok=True)
    if path.exists() and not overwrite:
        raise UserError(f"`{path}` already exists", hint="choose another name, or add --overwrite")
    write_whole(path, text)
    return path


def save_best(tunings: TuningStore, found: TuningRecord, paths: Paths) -> str | None:
    """Return the best's name as a preset, written where it is none yet; None: nothing was better, or is simulated."""
    if found.tuning.simulated or not accepted(found.stages):
        return None
    if (known := written_before(found.tuning, found.stages, found.presets, paths)) is not None:
        return known
    name = free_name(found.tuning, paths)
    write_preset(found.tuning, found.stages, name, paths)
    tunings.append_preset(found.id, name, time.time(), stage=stage_for(found.tuning, found.stages, None).number)
    return name


def written_before(tuning: Tuning, stages: Sequence[TuneStage], names: Sequence[str], paths: Paths) -> str | None:
    """Return which of the presets made of this tuning is the best so far, and still as it was written."""
    folder, best = presets_folder(paths), stage_for(tuning, stages, None)
    for name in reversed(names):
        path = folder / f"{name}.toml"
        text = preset_toml(tuned_preset(tuning, best, stages[0], name))
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return name
    return None


def free_name(tuning: Tuning, paths: Paths) -> str:
    """`MODEL-tuned-ID`, with a number behind it where such a preset is there already."""
    folder, ending = presets_folder(paths), f"-tuned-{tuning.id}"
    model = Path(tuning.model).stem if "/" in tuning.model else tuning.model
    plain = re.sub(r"[^a-z0-9._-]+", "-", model.lower()).strip(".-_")
    name = f"{plain[: LONGEST_NAME - len(ending) - 4] or 'model'}{ending}".lower()
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(one for one in names if find_preset(one, folder) is None and not (folder / f"{one}.toml").exists())
