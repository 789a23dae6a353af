"""Runs of the mixed workload as they are drawn: each with its letter, colour, dash and shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skep.records import Run, SweepSummary
from skep.report.comparison import Series, series_of
from skep.report.figures import moment
from skep.verdicts import MixedLevel, MixedSummary, SideFigures

Entries = Sequence[tuple[Run, MixedSummary]]


@dataclass(frozen=True, slots=True)
class Subject:
    """`look` is the run's letter and style; its own figures stay empty, as those of a sweep are none of these."""

    look: Series
    summary: MixedSummary

    @property
    def run(self) -> Run:
        return self.look.run

    @property
    def levels(self) -> list[MixedLevel]:
        return sorted(self.summary.levels, key=lambda level: level.concurrency)

    @property
    def alone(self) -> MixedLevel | None:
        return next((level for level in self.summary.levels if level.concurrency == 1), None)


def subjects_of(entries: Entries) -> tuple[Subject, ...]:
    """Called by their models; where two are alike, by the time and then by the run as well."""
    models = [summary.model for _, summary in entries]
    names = [
        model if models.count(model) == 1 else f"{model} @ {moment(run.created_at)}"
        for model, (run, _) in zip(models, entries, strict=True)
    ]
    names = [f"{name} ({entries[i][0].id})" if names.count(name) > 1 else name for i, name in enumerate(names)]
    bare = [(run, SweepSummary(run.id, (), None, None, None, client_limited=False)) for run, _ in entries]
    looks = series_of(bare, names)
    return tuple(Subject(look, summary) for look, (_, summary) in zip(looks, entries, strict=True))


def full_load(subjects: Sequence[Subject]) -> list[tuple[Subject, MixedLevel | None]]:
    """The largest level with side tasks that all have, or each one's own largest where they share none."""
    loaded = [[level for level in one.levels if level.side] for one in subjects]
    counts = [{level.concurrency for level in levels} for levels in loaded if levels]
    shared = set.intersection(*counts) if counts else set()
    found: list[tuple[Subject, MixedLevel | None]] = []
    for one, levels in zip(subjects, loaded, strict=True):
        largest = max(shared) if shared else max((level.concurrency for level in levels), default=None)
        found.append((one, next((level for level in levels if level.concurrency == largest), None)))
    return found


def verdict_word(passed: int, judged: int) -> str:
    """PASS, FAIL, or how many of how many; the count stands beside where there was more than one."""
    if not judged:
        return "not judged"
    if 0 < passed < judged:
        return f"{passed} of {judged}"
    word = "PASS" if passed else "FAIL"
    return word if judged == 1 else f"{word} {passed}/{judged}"


def keyword_word(side: SideFigures) -> str | None:
    """What a search for words would have said, where that is not what execution said."""
    said = side.keywords_passed
    return None if said is None or not side.judged or said == side.passed else verdict_word(said, side.judged)
