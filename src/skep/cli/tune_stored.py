"""Tunings as the store has them: listed, shown, exported, deleted."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from skep.catalog.presets import Preset, Published
from skep.cli.options import existing
from skep.cli.output import day_and_time, note, print_json, print_list, write_whole
from skep.cli.plan_output import check_page
from skep.cli.swarm_tables import one_line
from skep.cli.tune_tables import (
    aim_words,
    differences,
    failure_lines,
    figure_number,
    figure_words,
    headline,
    print_curve,
    print_ladder,
    print_progress,
    verdict_words,
)
from skep.config.preset_file import preset_toml
from skep.config.presets import check_name, find_preset, parse_preset, presets_folder
from skep.errors import SkepError, UserError
from skep.paths import Paths, user_paths
from skep.tuner.documents import asked_and_answered, curve_of, failure_json, tuning_json
from skep.tuner.knobs import apply_config
from skep.tuner.records import ConfigFailure, CurvePoint, CurveResult, MeasurementRound, TuneStage, Tuning
from skep.tuner.store import SavedAnswer, SavedTuning, TuningState, TuningStore, from_document
from skep.tuner.summary import KEPT, baseline_of, best_of, count_decisions, given_up, total_gain, unit_of
from skep.units import format_seconds

NONE_YET, MAKES_ONE = "there are no tunings yet", "`skep tune MODEL` makes one"


@dataclass(frozen=True, slots=True)
class TuningRecord:
    """All of one tuning. `failure`: of a baseline that never gave a figure."""

    row: SavedTuning
    stages: tuple[TuneStage, ...]
    curved: CurveResult | None
    failure: ConfigFailure | None = None

    @property
    def curve(self) -> tuple[CurvePoint, ...]:
        return () if self.curved is None else self.curved.points

    @property
    def tuning(self) -> Tuning:
        return self.row.tuning


@contextmanager
def opened(*, read_only: bool = True) -> Iterator[TuningStore]:
    with existing(NONE_YET, MAKES_ONE, read_only=read_only) as store:
        yield TuningStore(store)


def read_tuning(name: str) -> TuningRecord:
    with opened() as tunings:
        row = tunings.find(name)
        stages = tuple(tunings.stages(row.id))
        failure = None if stages else _baseline_failure(tunings.answers(row.id, "round"))
        return TuningRecord(row, stages, curve_of(tunings.answers(row.id, "curve")), failure)


def _baseline_failure(rounds: Sequence[SavedAnswer]) -> ConfigFailure | None:
    answers = (asked_and_answered(one)[1] for one in rounds)
    starts = [start for answer in answers if isinstance(answer, MeasurementRound) for start in answer.starts]
    return next((start.failure for start in reversed(starts) if start.failure is not None), None)


def document(found: TuningRecord) -> dict[str, Any]:
    told = tuning_json(found.tuning, found.stages, found.curved, state=found.row.state, measured_s=found.row.measured_s)
    failure = None if found.failure is None else failure_json(found.failure)
    return {**told, "failure": failure, "reason": found.row.reason, "presets": list(found.row.presets)}


def show_tuning(name: str, *, html: Path | None, as_json: bool) -> None:
    if html is not None:
        check_page(html)
    found = read_tuning(name)
    if as_json:
        print_json(document(found))
    else:
        print_all(found)
        _say_next(found)
    if html is not None:
        write_page(found, html)


def print_all(found: TuningRecord) -> None:
    """Print the ladder, the search as bars, the curve."""
    tuning, stages = found.tuning, found.stages
    over = found.row.state is TuningState.ENDED
    print(headline(tuning, stages, over=over))  # noqa: T201
    if found.failure is not None:
        print("\n".join(failure_lines("the baseline", found.failure)))  # noqa: T201
    if stages:
        print_ladder(tuning, stages)
        print()  # noqa: T201
        print_progress(tuning, stages)
    best = best_of(stages)
    if found.curve and best is not None:
        print()  # noqa: T201
        print_curve(found.curve, stages[0].config, best.config)
    tried = count_decisions(stages) or f"no change was {'tried' if over else 'decided yet'}"
    why = f", {found.row.reason}" if over and found.row.reason else ""
    state = f"{found.row.state.value}{why}"
    note(f"{tuning.id} ({state}): goal {aim_words(tuning.aim)}; {tried}; {took_words(found.row)}")
    if tuning.simulated:
        note("SIMULATED: no model ran; figures and seconds are the planner's with noise, not measurements")


def logs_folder(paths: Paths, tuning_id: str) -> Path:
    """Return where its engines were started; logs of those that failed stay there."""
    return paths.state / "tunings" / tuning_id


def took_words(row: SavedTuning) -> str:
    """Of all its sessions, without what lay between them."""
    if not row.answers:
        return "nothing is measured yet"
    return f"{format_seconds(row.measured_s)} of {'virtual time' if row.tuning.simulated else 'measuring'}"


def _say_next(found: TuningRecord) -> None:
    so_far = "" if found.row.state is TuningState.ENDED else " so far"
    if found.row.state is TuningState.RUNNING:
        note(f"a process is at work on it; {format_seconds(found.tuning.budget_s)} is its budget")
    if found.row.state is TuningState.INTERRUPTED:
        why = f" ({found.row.error})" if found.row.error else ""
        note(f"it was interrupted{why}; `skep tune resume {found.row.id}` goes on with it")
    logs = logs_folder(user_paths(os.environ), found.row.id)
    if found.row.state is not TuningState.RUNNING and logs.is_dir():
        note(f"logs of what failed are in {logs}")
    if best_of(found.stages) is not None:
        made = f"; made of it already: {', '.join(found.row.presets)}" if found.row.presets else ""
        note(f"`skep tune export NAME --tuning {found.row.id}` writes the best{so_far} as a preset{made}")


def export_tuning(name: str, tuning: str, *, stage: int | None, overwrite: bool) -> None:
    found = read_tuning(tuning)
    path = write_preset(found.tuning, found.stages, name, stage=stage, overwrite=overwrite)
    wanted = stage_for(found.tuning, found.stages, stage)
    with opened(read_only=False) as tunings:
        tunings.append_preset(found.row.id, name, time.time(), stage=wanted.number)
    print(path)  # noqa: T201
    changed = differences(found.stages[0].config, wanted.config)
    note(f"stage {wanted.number} of {found.row.id}, against its baseline: {changed}")
    if wanted.decision not in KEPT or wanted.number in given_up(found.stages):
        note(f"warning: it was not kept: {verdict_words(wanted, found.stages)}, {one_line(wanted.why, 300)}")
    stand_in = base_of(found.tuning).stand_in
    before = f"write the weights' name into its `checkpoint` ({path}), then " if stand_in else ""
    note(f"{before}`skep up {name}` serves it")


def print_tunings(limit: int, *, as_json: bool) -> None:
    columns = "TUNING|WHEN|STATE|MODEL|ENGINE|ON|GOAL|LOAD|>FROM|>TO|>TIMES|NOTE"
    print_list(_all(limit), columns, _cells, _row_json, as_json=as_json, none_yet=f"{NONE_YET}; {MAKES_ONE}")


def remove_tuning(name: str) -> None:
    with opened(read_only=False) as tunings:
        found = tunings.find(name)
        tunings.delete([found.id])
    shutil.rmtree(logs_folder(user_paths(os.environ), found.id), ignore_errors=True)
    stay = f"; its presets stay: {', '.join(found.presets)}" if found.presets else ""
    note(f"tuning {found.id} of {found.tuning.model} is deleted{stay}")


def write_page(found: TuningRecord, html: Path) -> None:
    from skep.report.tuning import tuning_page

    state = None if found.row.state is TuningState.ENDED else found.row.state.value
    write_whole(html, tuning_page(found.tuning, found.stages, found.curve, state=state))
    note(f"{found.row.id} written to {html}")


def _all(limit: int) -> list[tuple[SavedTuning, list[TuneStage]]]:
    if not user_paths(os.environ).store.exists():
        return []
    with opened() as tunings:
        return [(row, tunings.stages(row.id)) for row in tunings.tunings(limit)]


def _ends(stages: Sequence[TuneStage]) -> tuple[float | None, float | None]:
    base, best = baseline_of(stages), best_of(stages)
    first = None if base is None or base.figure is None else base.figure.estimate
    last = None if best is None or best.figure is None else best.figure.estimate
    return first, last


def _row_json(saved: tuple[SavedTuning, list[TuneStage]]) -> dict[str, Any]:
    row, stages = saved
    first, last = _ends(stages)
    tuning = row.tuning
    return {
        "id": row.id, "created_at": tuning.created_at, "state": row.state.value, "model": tuning.model,
        "engine": tuning.engine, "rig": tuning.rig, "goal": str(tuning.aim), "shape": tuning.aim.shape,
        "slo": tuning.aim.slo, "simulated": tuning.simulated, "stages": row.stages, "from": first, "to": last,
        "presets": list(row.presets), "skep_version": tuning.skep_version,
    }  # fmt: skip


def _cells(saved: tuple[SavedTuning, list[TuneStage]]) -> list[str]:
    row, stages = saved
    first, last = _ends(stages)
    tuning, when = row.tuning, day_and_time(row.tuning.created_at)
    gain = total_gain(stages)
    why = row.reason if not stages else None
    told = ", ".join(filter(None, ["SIMULATED" if tuning.simulated else "", why, *row.presets]))
    figures = [f"{figure_number(one)} {unit_of(tuning)}" if one is not None else "–" for one in (first, last)]
    return [row.id, when, row.state.value, tuning.model, tuning.engine, tuning.rig, str(tuning.aim), tuning.aim.shape,
            *figures, "–" if gain is None else f"{gain.estimate:.2f}", told]  # fmt: skip


LONGEST_NAME = 80


def base_of(tuning: Tuning) -> Preset:
    return from_document({key: value for key, value in tuning.base.items() if key not in ("wishes", "terrain")}, Preset)


def tuned_preset(tuning: Tuning, stage: TuneStage, baseline: TuneStage, name: str) -> Preset:
    """The stage's configuration, with what it was measured as. The figures of the base's author are not its own."""
    base, day = base_of(tuning), datetime.fromtimestamp(tuning.created_at, UTC).date().isoformat()
    mark = "SIMULATED, " if tuning.simulated else ""
    found = apply_config(base, stage.config)
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


def _figures(tuning: Tuning, stage: TuneStage) -> tuple[Published, ...]:
    """Return what `skep bench sweep --against-preset` can hold itself against: real, and of output over wall time."""
    if tuning.simulated or stage.figure is None or tuning.aim.metric != "effective_tok_s":
        return ()
    aim, readings = tuning.aim, f"{stage.readings} readings in {stage.starts} starts" if stage.starts else None
    return (
        Published(
            stage.figure.estimate, "output", aim.concurrency, aim.input_tokens, aim.output_tokens, "client",
            ttft_ms=stage.ttft_ms, tpot_ms=stage.tpot_ms, runs=readings,
        ),
    )  # fmt: skip


def stage_for(tuning: Tuning, stages: Sequence[TuneStage], number: int | None) -> TuneStage:
    """Return the best, or that stage of the ladder."""
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
    tuning: Tuning, stages: Sequence[TuneStage], name: str, *, stage: int | None = None, overwrite: bool = False
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
    if overwrite:
        write_whole(path, text)
        return
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise UserError(f"`{path}` is there already", hint="choose another name, or add --overwrite") from None


def written_before(tuning: Tuning, stages: Sequence[TuneStage], names: Sequence[str]) -> str | None:
    """Return which of the presets made of this tuning is the best so far, and still as it was written."""
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
