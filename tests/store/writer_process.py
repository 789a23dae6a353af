"""A process that writes a run until it is told to stop: `writer_process.py DATABASE ROWS`, -1 for
endless.

Says the run's id once it has begun, then a line for each row it has committed, and waits for a
line on standard input before the first row and before it ends the run."""

import itertools
import sys
import time
from pathlib import Path

from skep.store.database import open_store
from skep.store.records import Request


def main(path: Path, rows: int) -> None:
    with open_store(path) as store:
        run_id = store.begin_run(
            kind="sweep",
            created_at=time.time(),
            model="m",
            url="u",
            fingerprint="f",
            config={},
            host={},
            engine={},
            simulated=True,
            skep_version="0",
        )
        print(run_id, flush=True)
        sys.stdin.readline()
        for index in itertools.count() if rows < 0 else range(rows):
            store.append_requests(
                run_id, [Request(1, 0, index, "fix", 0.0, 1.0, arrivals_s=(0.1, 0.2))]
            )
            print(index, flush=True)
        sys.stdin.readline()
        store.end_run(run_id, time.time(), "done")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
