"""How often "no worse" and "worse" are said wrongly, and whether as many items are enough as is
said beforehand.

    .venv/bin/python benchmarks/noninferiority.py [--runs 1000]

Items have difficulties from a beta distribution; `evenly`: every item loses its share, `items`:
some are lost in every repeat, the others not at all. `fresh`: both arms are drawn anew in every
repeat, `fixed base`: the base arm answers the same in all repeats, as greedy decoding of single
requests does. One repeat is worked out exactly instead, for any mixture of difficulties with as
many pairs that differ. Beside skep's bound: Tango's as published, and for repeats Tango's on
counts scaled by the design effect.

1000 runs leave 0.7 points of chance around 5 %; the worst cells are run again, 20 times as often
and with another seed. About ten minutes on one core."""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from random import Random
from statistics import fmean, variance

from skep.stats.noninferiority import Z_ONE_SIDED, delta_shown, items_needed, mean_of, score

METHODS = ("skep", "Tango", "scaled")
EXACT_ITEMS = (50, 75, 88, 100, 125, 164, 200, 300, 500, 750, 1000)
SIZES = (
    (0.1, 50),
    (0.1, 100),
    (0.05, 100),
    (0.03, 100),
    (0.03, 200),
    (0.03, 500),
    (0.03, 1000),
    (0.02, 1000),
)
RATES = (0.1, 0.3, 0.6, 0.95)
FIRMNESS = (
    0.05,
    0.5,
    3.0,
)  # a + b of the beta distribution; the less, the more items that always or never pass


@dataclass(frozen=True)
class Cell:
    delta: float
    items: int
    rate: float
    firmness: float
    form: str  # "evenly" | "items"
    draw: str  # "fresh" | "fixed base"
    repeats: int

    def spread(self, loss: float) -> dict[tuple[int, int], float]:
        """Chance of (lost, gained) pairs of one item."""
        rng = Random(11)
        hard = [
            rng.betavariate(self.rate * self.firmness, (1 - self.rate) * self.firmness)
            for _ in range(400)
        ]
        # Of what passes; the mean loss is exact for these 400 kinds of items.
        share = loss / fmean(hard)
        chances: Counter[tuple[int, int]] = Counter()
        for p in hard:
            if self.form == "evenly":
                kinds = [(1.0, p * (1 - share))]
            else:
                kinds = [(1 - share, p), (share, 0.0)]
            for weight, under_load in kinds:
                for outcome, chance in self._outcomes(p, under_load):
                    chances[outcome] += weight * chance / len(hard)
        return dict(chances)

    def _outcomes(self, base: float, load: float) -> Iterator[tuple[tuple[int, int], float]]:
        n = self.repeats
        if self.draw == "fixed base":
            for k in range(n + 1):
                some = math.comb(n, k) * load**k * (1 - load) ** (n - k)
                yield (n - k, 0), base * some
                yield (0, k), (1 - base) * some
            return
        lost = base * (1 - load)
        gained = (1 - base) * load
        for b in range(n + 1):
            for c in range(n + 1 - b):
                ways = math.comb(n, b) * math.comb(n - b, c)
                yield (
                    (b, c),
                    ways * lost**b * gained**c * max(0.0, 1 - lost - gained) ** (n - b - c),
                )


def values_of(seen: Counter[tuple[int, int]], repeats: int) -> Counter[float]:
    values: Counter[float] = Counter()
    for (lost, gained), count in seen.items():
        values[(gained - lost) / repeats] += count
    return values


def says_no_worse(method: str, seen: Counter[tuple[int, int]], repeats: int, delta: float) -> bool:
    values = values_of(seen, repeats)
    if mean_of(values) <= -delta:
        return False
    if method == "scaled":
        return score(scaled(seen, values, repeats), -delta, corrected=False) > Z_ONE_SIDED
    return score(values, -delta, corrected=method == "skep") > Z_ONE_SIDED


def scaled(
    seen: Counter[tuple[int, int]], values: Counter[float], repeats: int
) -> dict[float, float]:
    """All pairs as if independent, shrunk by how much more the items differ than independent pairs
    would let them.
    """
    items = sum(seen.values())
    lost = sum(b * count for (b, _), count in seen.items())
    gained = sum(c * count for (_, c), count in seen.items())
    pairs = items * repeats
    alone = (lost + gained) / pairs - ((gained - lost) / pairs) ** 2
    between = variance(list(values.elements()))
    if alone > 0:
        effect = min(max(between * repeats / alone, 1.0), repeats)
    else:
        effect = repeats
    return {-1.0: lost / effect, 1.0: gained / effect, 0.0: (pairs - lost - gained) / effect}


def says_worse(seen: Counter[tuple[int, int]], repeats: int) -> bool:
    mirrored = {-value: count for value, count in values_of(seen, repeats).items()}
    return mean_of(mirrored) > 0 and score(mirrored, 0.0) > Z_ONE_SIDED


def drawn(
    spread: dict[tuple[int, int], float], items: int, runs: int, seed: str
) -> Iterator[Counter[tuple[int, int]]]:
    rng = Random(seed)
    outcomes = list(spread)
    sums = list(itertools.accumulate(spread.values()))
    for _ in range(runs):
        yield Counter(rng.choices(outcomes, cum_weights=sums, k=items))


def errors(cell: Cell, runs: int, seed: str) -> dict[str, float]:
    """Of all ways to say "no worse" when exactly delta is lost; of "worse" when nothing is."""
    wrong: Counter[str] = Counter()
    for seen in drawn(cell.spread(cell.delta), cell.items, runs, seed):
        for method in METHODS:
            wrong[method] += says_no_worse(method, seen, cell.repeats, cell.delta)
    for seen in drawn(cell.spread(0.0), cell.items, runs, seed + "none"):
        below = says_worse(seen, cell.repeats)
        wrong["bound below zero"] += below
        wrong["worse"] += below and not says_no_worse("skep", seen, cell.repeats, cell.delta)
    return {name: wrong[name] / runs for name in (*METHODS, "bound below zero", "worse")}


def exactly(items: int, delta: float, discordance: float, loss: float, method: str) -> float:
    """Chance of "no worse" with one repeat, summed over all (lost, gained)."""
    lost = (discordance + loss) / 2
    gained = max(0.0, (discordance - loss) / 2)
    total = 0.0
    for b, c in itertools.product(_likely(items, lost), _likely(items, gained)):
        if b + c > items or (c - b) / items <= -delta:
            continue
        logs = math.lgamma(items + 1) - sum(math.lgamma(k + 1) for k in (b, c, items - b - c))
        logs += sum(
            k * math.log(p)
            for k, p in ((b, lost), (c, gained), (items - b - c, 1 - lost - gained))
            if k
        )
        counter = Counter({(1, 0): b, (0, 1): c, (0, 0): items - b - c})
        if logs > -25 and says_no_worse(method, counter, 1, delta):
            total += math.exp(logs)
    return total


def _likely(items: int, chance: float) -> range:
    if chance <= 0:
        return range(1)
    reach = 6 * math.sqrt(items * chance) + 6
    return range(max(0, int(items * chance - reach)), min(items, int(items * chance + reach)) + 1)


def exact_part() -> list[dict]:
    print(
        "One repeat, exactly: % of runs in which a loss of delta is called no worse, skep's "
        "bound (Tango's)"
    )
    print(f"{'delta':>6}{'differ':>8}" + "".join(f"{items:>12}" for items in EXACT_ITEMS))
    rows = []
    for delta in (0.02, 0.03, 0.05, 0.1):
        for discordance in sorted({delta, 1.2 * delta, 2 * delta, 0.1, 0.3}):
            if discordance < delta:
                continue
            found = [
                [
                    round(exactly(n, delta, discordance, delta, method), 5)
                    for method in ("skep", "Tango")
                ]
                for n in EXACT_ITEMS
            ]
            cells = "".join(
                f"{f'{100 * ours:.1f} ({100 * plain:.1f})':>12}" for ours, plain in found
            )
            print(f"{delta:>6}{discordance:>8.3f}{cells}", flush=True)
            rows.append(
                {
                    "delta": delta,
                    "discordance": discordance,
                    "items": EXACT_ITEMS,
                    "skep_tango": found,
                }
            )
    worst = [max(pair[i] for row in rows for pair in row["skep_tango"]) for i in (0, 1)]
    print(f"worst: skep {100 * worst[0]:.1f} %, Tango {100 * worst[1]:.1f} %\n")
    return rows


def simulated_part(runs: int) -> dict:
    cells = [
        Cell(delta, items, rate, firmness, form, draw, repeats)
        for (delta, items), rate, firmness, form in itertools.product(
            SIZES, RATES, FIRMNESS, ("evenly", "items")
        )
        for draw, repeats in (("fresh", 2), ("fresh", 5), ("fixed base", 2), ("fixed base", 5))
        if delta <= rate
    ]
    found = [(cell, errors(cell, runs, f"{number}")) for number, cell in enumerate(cells)]
    print(f"Repeats, {len(cells)} cells of {runs} runs: % wrong, worst (mean)")
    print(f"{'':24}" + "".join(f"{name:>19}" for name in (*METHODS, "bound below zero", "worse")))
    groups = [
        ("evenly", "fresh"),
        ("evenly", "fixed base"),
        ("items", "fresh"),
        ("items", "fixed base"),
    ]
    for repeats, (form, draw) in itertools.product((2, 5), groups):
        here = [
            e for cell, e in found if (cell.repeats, cell.form, cell.draw) == (repeats, form, draw)
        ]
        shown = (
            f"{100 * max(e[n] for e in here):.1f} ({100 * fmean(e[n] for e in here):.1f})"
            for n in here[0]
        )
        print(f"{f'{repeats}x, {form}, {draw}':24}" + "".join(f"{text:>19}" for text in shown))
    print(f"\nThe worst, again with {20 * runs} runs")
    rows = [[*astuple(cell), runs, *wrong.values()] for cell, wrong in found]
    for name in ("skep", "worse", "bound below zero"):
        for cell, _ in sorted(found, key=lambda pair: -pair[1][name])[:4]:
            wrong = errors(cell, 20 * runs, f"again {cell}")
            rows.append([*astuple(cell), 20 * runs, *wrong.values()])
            print(f"{name:>17} {100 * wrong[name]:.2f} %: {cell}", flush=True)
    return {
        "columns": [*(field.name for field in fields(Cell)), "runs", *found[0][1]],
        "rows": rows,
    }


def power_part(runs: int) -> list[dict]:
    print(
        "\nEnough items? % of runs that say no worse (worse) with as many as are said to be "
        "needed for 80 %"
    )
    print(
        f"{'delta':>6}{'rate':>6}{'firm':>6}{'draw':>12}{'x':>3}{'differ':>8}{'alike':>7}{'items':>7}",
        end="",
    )
    print(f"{'no loss':>15}{'delta lost':>15}{'2 delta lost':>15}{'11 points':>15}")
    rows = []
    for delta, firmness, (draw, repeats) in itertools.product(
        (0.03, 0.05),
        (0.05, 0.5, 3.0),
        (("fresh", 1), ("fresh", 3), ("fresh", 5), ("fixed base", 3), ("fixed base", 5)),
    ):
        cell = Cell(delta, 0, 0.6, firmness, "items", draw, repeats)
        differ, alike = noise_of(cell)
        items = items_needed(delta, discordance=differ, repeats=repeats, correlation=alike)
        said = []
        for loss in (0.0, delta, 2 * delta, 0.11):
            holds = worse = 0
            for seen in drawn(cell.spread(loss), items, runs, f"power {cell} {loss}"):
                fine = says_no_worse("skep", seen, repeats, delta)
                holds += fine
                worse += not fine and says_worse(seen, repeats)
            said.append((holds / runs, worse / runs))
        shown = "".join(f"{f'{100 * a:.1f} ({100 * b:.1f})':>15}" for a, b in said)
        print(
            f"{delta:>6}{cell.rate:>6}{firmness:>6}{draw:>12}{repeats:>3}{differ:>8.3f}{alike:>7.2f}{items:>7}{shown}",
            flush=True,
        )
        about = {
            "delta": delta,
            "firmness": firmness,
            "draw": draw,
            "repeats": repeats,
            "discordance": differ,
        }
        rows.append({**about, "correlation": alike, "items": items, "holds_worse_by_loss": said})
    return rows


def noise_of(cell: Cell) -> tuple[float, float]:
    """Discordance and correlation of the repeats, where nothing is lost."""
    spread = cell.spread(0.0)
    differ = sum(chance * (b + c) for (b, c), chance in spread.items()) / cell.repeats
    between = sum(chance * ((c - b) / cell.repeats) ** 2 for (b, c), chance in spread.items())
    if cell.repeats > 1:
        alike = (cell.repeats * between / differ - 1) / (cell.repeats - 1)
    else:
        alike = 0.0
    return differ, min(max(alike, 0.0), 1.0)


def plan_part() -> None:
    print("\nItems for 80 %, one repeat, and what 164 items can show")
    print(
        f"{'differ':>8}"
        + "".join(f"{f'delta {delta}':>12}" for delta in (0.02, 0.03, 0.05, 0.1))
        + f"{'of 164':>10}"
    )
    for discordance in (0.0, 0.01, 0.02, 0.05, 0.1, 0.2):
        needed = "".join(
            f"{items_needed(d, discordance=discordance):>12}" for d in (0.02, 0.03, 0.05, 0.1)
        )
        print(f"{discordance:>8}{needed}{delta_shown(164, discordance=discordance):>10.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    runs = parser.parse_args().runs
    stored = {"exact": exact_part(), "simulated": simulated_part(runs), "power": power_part(runs)}
    plan_part()
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    (results / "noninferiority.json").write_text(json.dumps(stored) + "\n")


if __name__ == "__main__":
    main()
