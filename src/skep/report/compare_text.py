"""What `skep runs compare` and `skep bench ab` say of two runs: a row a level, remarks, a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skep.bench.compare import loss
from skep.bench.records import Comparison
from skep.report.columns import Column
from skep.stats.versus import Judgement

SHOWN = {"effective tok/s": "tok/s", "TTFT p50": "TTFT p50", "TTFT p95": "TTFT p95", "TPOT p50": "TPOT p50"}
_RANKS = {"TTFT p50": 1, "TPOT p50": 2, "TTFT p95": 3}  # in a narrow terminal the last goes first
MARKS = {Judgement.BETTER: "better", Judgement.WORSE: "worse", Judgement.SAME: "=", Judgement.UNKNOWN: "?"}


@dataclass(frozen=True, slots=True)
class CompareResult:
    """A comparison with its verdict. `worse`: the regressions, beyond `allowed`."""

    found: Sequence[Comparison]
    worse: Sequence[Comparison]
    allowed: float

    @property
    def verdict(self) -> str:
        if self.worse:
            return "regression"
        judged = any(one.judgement is not Judgement.UNKNOWN for one in self.found)
        return "no regression" if judged else "not comparable"

    @property
    def words(self) -> str:
        beyond = f"{100 * self.allowed:g} %"
        match self.verdict:
            case "regression":
                told = [f"{_name(one)} ({100 * loss(one):.1f} % worse)" for one in self.worse[:3]]
                more = [f"and {len(self.worse) - 3} more"] if len(self.worse) > 3 else []
                return f"REGRESSION: B is worse than A by more than {beyond}: {', '.join([*told, *more])}"
            case "no regression":
                return f"no regression beyond {beyond} is shown"
            case _:
                return "no verdict: no figure of the two runs can be compared"

    def remarks(self) -> list[str]:
        """Return why a single `worse` is no regression, what the table has no room for, and what was not compared."""
        counted = {(one.concurrency, one.metric) for one in self.worse}
        found = []
        for one in self.found:
            judged = one.judgement in (Judgement.BETTER, Judgement.WORSE)
            if judged and one.metric not in SHOWN:
                found.append(f"{_name(one)}, B / A: {_ratio_cell(one)}")
            if one.judgement is Judgement.WORSE and (one.concurrency, one.metric) not in counted:
                found.append(self._no_regression(one))
        reasons = dict.fromkeys(one.why for one in self.found if one.judgement is Judgement.UNKNOWN and one.why)
        for why in reasons:
            levels = dict.fromkeys(f"C={one.concurrency}" for one in self.found if one.why == why)
            found.append(f"{' and '.join(levels)} not compared: {why}")
        return found

    def _no_regression(self, one: Comparison) -> str:
        size, beyond = f"{100 * loss(one):.1f} %", f"{100 * self.allowed:g} %"
        if loss(one) <= self.allowed:
            return f"{_name(one)} is {size} worse, within the threshold of {beyond}"
        return (
            f"{_name(one)} is worse by itself, by {size}, and no regression: of figures that did not change one in "
            f"twenty looks better or worse by chance, so it must hold at 95 % over all {len(self.found)} together; "
            "more runs decide"
        )


def group_by_level(found: Sequence[Comparison]) -> list[dict[str, Comparison]]:
    levels: dict[int, dict[str, Comparison]] = {}
    for one in found:
        levels.setdefault(one.concurrency, {})[one.metric] = one
    return list(levels.values())


def comparison_columns() -> list[Column[dict[str, Comparison]]]:
    """Return the columns of a level's comparisons, by metric."""

    def ratio(metric: str, title: str) -> Column[dict[str, Comparison]]:
        rank = _RANKS.get(metric, 0)
        return Column(metric, f"{title} B/A", lambda of: _ratio_cell(of[metric]), rank=rank, right=False)

    speed = "effective tok/s"
    return [
        Column("concurrency", "C", lambda of: of[speed].concurrency),
        Column("a", "A tok/s", lambda of: of[speed].a),
        Column("b", "B tok/s", lambda of: of[speed].b),
        *(ratio(metric, title) for metric, title in SHOWN.items()),
    ]


def _ratio_cell(one: Comparison) -> str:
    if one.ratio is None:
        return MARKS[one.judgement]
    return f"{one.ratio.estimate:.2f} ({one.ratio.low:.2f}..{one.ratio.high:.2f}) {MARKS[one.judgement]}"


def _name(one: Comparison) -> str:
    return f"{one.metric} at C={one.concurrency}"
