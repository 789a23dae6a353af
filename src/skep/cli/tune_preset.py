"""A stage of a tuning as a preset of one's own: what is written into it, and where. Knows no engine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from skep.catalog.preset_toml import preset_toml
from skep.catalog.presets import Preset, Published
from skep.cli.tune_tables import differences, figure_words
from skep.errors import SkepError, UserError
from skep.places import user_paths
from skep.presetfile import check_name, find_preset, parse_preset, presets_folder
from skep.report.tuning_words import KEPT, best_of, unit_of
from skep.store.tunings_rows import packed, unpacked
from skep.tuner.knobs import turned
from skep.tunings import Stage, Tuning

LONGEST_NAME = 80


def base_document(preset: Preset) -> dict[str, object]:
    """How a tuning keeps the preset that its configurations are turned from."""
    document: dict[str, object] = packed(preset)
    return document


def base_of(tuning: Tuning) -> Preset:
    return unpacked({key: value for key, value in tuning.base.items() if key not in ("wishes", "terrain")}, Preset)


def tuned_preset(tuning: Tuning, stage: Stage, baseline: Stage, name: str) -> Preset:
    """The stage's configuration, with what it was measured as. The figures of the base's author are not its own."""
    base, day = base_of(tuning), datetime.fromtimestamp(tuning.created_at, UTC).date().isoformat()
    mark = "SIMULATED, " if tuning.simulated else ""
    found = turned(base, stage.config)
    notes = [
        f"{mark}tuned for {tuning.aim} ({tuning.aim.shape}) on {tuning.rig}",
        f"against the baseline: {differences(baseline.config, stage.config)}",
    ]
    if stage.decision not in KEPT:
        notes.append(f"stage {stage.number} of its ladder, which was not kept: {stage.decision.value}")
    if stage.figure is not None:
        how = "SIMULATED, not measured" if tuning.simulated else "measured"
        notes.append(f"{how}: {figure_words(stage.figure)} {unit_of(tuning)}, 95 % interval")
    return replace(
        found,
        name=name,
        title=f"{tuning.model}, {mark}tuned for {tuning.aim}",
        source=f"skep tune {tuning.id}, skep {tuning.skep_version}",
        date=day,
        published=_figures(tuning, stage),
        notes=(*notes, *base.notes),
        origin="",
    )


def _figures(tuning: Tuning, stage: Stage) -> tuple[Published, ...]:
    """What `skep bench sweep --against-preset` can hold itself against: real, and of output over wall time."""
    if tuning.simulated or stage.figure is None or tuning.aim.metric != "effective_tok_s":
        return ()
    aim, readings = tuning.aim, f"{stage.readings} readings in {stage.starts} starts" if stage.starts else None
    return (
        Published(
            stage.figure.estimate, "output", aim.concurrency, aim.input_tokens, aim.output_tokens, "client",
            ttft_ms=stage.ttft_ms, tpot_ms=stage.tpot_ms, runs=readings,
        ),
    )  # fmt: skip


def stage_for(tuning: Tuning, stages: Sequence[Stage], number: int | None) -> Stage:
    """The best, or that stage of the ladder."""
    if number is None:
        best = best_of(stages)
        if best is None:
            hint = f"`skep tune show {tuning.id}` says why"
            raise UserError(f"tuning `{tuning.id}` has measured nothing that could be exported", hint=hint)
        return best
    found = next((stage for stage in stages if stage.number == number), None)
    if found is None:
        last = f"0 to {stages[-1].number}" if stages else "none"
        raise UserError(f"tuning `{tuning.id}` has no stage {number}", hint=f"there are {last}")
    return found


def write_preset(
    tuning: Tuning, stages: Sequence[Stage], name: str, *, stage: int | None = None, overwrite: bool = False
) -> Path:
    """Into the user's folder, where `skep up NAME` finds it. What could not be read back is not written."""
    folder = presets_folder(user_paths(os.environ))
    path = folder / f"{check_name(name)}.toml"
    if path.exists() and not overwrite:
        raise UserError(f"`{path}` is there already", hint="choose another name, or add --overwrite")
    wanted = stage_for(tuning, stages, stage)
    text = preset_toml(tuned_preset(tuning, wanted, stages[0], name))
    try:
        parse_preset(text, name, str(path))
    except UserError as error:
        why = error.message.rpartition(f"{path}:")[2]
        raise SkepError(f"this configuration cannot be a preset: {why}", hint=error.hint) from None
    folder.mkdir(parents=True, exist_ok=True)
    _write(path, text, overwrite=overwrite)
    return path


def _write(path: Path, text: str, *, overwrite: bool) -> None:
    from skep.cli.results import write_whole

    if overwrite:
        write_whole(path, text)
        return
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"`{path}` is there already", hint="choose another name, or add --overwrite") from None


def written_before(tuning: Tuning, stages: Sequence[Stage], names: Sequence[str]) -> str | None:
    """Which of the presets made of this tuning is the best so far, and still as it was written."""
    folder, best = presets_folder(user_paths(os.environ)), stage_for(tuning, stages, None)
    for name in reversed(names):
        path = folder / f"{name}.toml"
        text = preset_toml(tuned_preset(tuning, best, stages[0], name))
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return name
    return None


def free_name(tuning: Tuning) -> str:
    """`MODEL-tuned-ID`, with a number behind it where such a preset is there already."""
    folder = presets_folder(user_paths(os.environ))
    ending = f"-tuned-{tuning.id}"
    model = re.sub(
        r"[^a-z0-9._-]+", "-", Path(tuning.model).stem.lower() if "/" in tuning.model else tuning.model.lower()
    )
    name = f"{model.strip('.-_')[: LONGEST_NAME - len(ending) - 4] or 'model'}{ending}".lower()
    taken, number = name, 1
    while find_preset(taken, folder) is not None or (folder / f"{taken}.toml").exists():
        number += 1
        taken = f"{name}-{number}"
    return taken
