"""A process that holds values against schemas. It may be lost at any time: a check that takes too long kills it.

Python's regular expressions backtrack, `^(a+)+$` takes for ever on thirty characters, and while they do nothing else of
the process runs: a thread would stop the runner as well. So such a schema is checked here, in a child that the kernel
ends after so many seconds of computing, whether its parent still lives or not. No sandbox is needed: the schema is the
user's, and the answer is data; what is bounded is time.

Started with that number of seconds. A line in: {"schema": ..., "value": ...}; a line out: {"fault": null or a text}.
The end of its input is its end.
"""

from __future__ import annotations

import json
import signal
import sys

from skep.swarm.checking.schemas import value_faults


def main() -> None:
    compute_s = float(sys.argv[1])
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the kernel's own: ends the process in the middle of a match
    for line in sys.stdin.buffer:
        job = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, compute_s)
        fault = value_faults(job["schema"], job["value"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps({"fault": fault}).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
