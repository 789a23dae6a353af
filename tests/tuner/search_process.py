"""A process that searches: `search_process.py DATABASE new|TUNING [freely]`.

Says the tuning's id, then the number of each request as it begins; before it answers one it waits for a line, unless it
searches freely.
"""

import asyncio
import sys
import time
from pathlib import Path

from stored_search import NumberedBench, a_search, a_tuning

from skep.store.database import open_store
from skep.tuner.running import TuningJournal, replay_answers, run_search
from skep.tuner.store import TuningStore


def main(path: Path, name: str, *, freely: bool) -> None:
    async def before(number, _request):
        print(number, flush=True)
        if not freely:
            await asyncio.to_thread(sys.stdin.readline)

    with open_store(path) as store:
        begin, what = (TuningJournal.begin, a_tuning()) if name == "new" else (TuningJournal.resume, name)
        journal, search = begin(TuningStore(store), what, time.time), a_search()
        print(journal.tuning.id, flush=True)
        spent_s = replay_answers(journal, search)
        asyncio.run(run_search(search, NumberedBench(len(journal.past), before, spent_s), journal))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], freely="freely" in sys.argv)
