"""A process that appends a probe with three samples for one slot after the other: `series_process.py DATABASE`.

Says the number of each slot that is stored, and goes on until it is killed.
"""

import itertools
import sys
from pathlib import Path

from skep.monitor.records import Heat, Probe, ProbeOutcome, ProbeSample, ProbeShape
from skep.monitor.store import SeriesStore
from skep.store.database import open_store

EVERY_S = 600.0
RUNS = ((Heat.COLD, ProbeShape.SHORT), (Heat.HOT, ProbeShape.SHORT), (Heat.HOT, ProbeShape.LONG))


def main(path: Path) -> None:
    with open_store(path) as store:
        series = SeriesStore(store)
        for slot in itertools.count():
            at = slot * EVERY_S
            samples = [ProbeSample(at, heat, shape, 1, tok_s=50.0 + slot % 7) for heat, shape in RUNS]
            series.append_probe(Probe("box", 0, slot, at, at + 9.0, ProbeOutcome.DONE, started_at=at), samples)
            print(slot, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
