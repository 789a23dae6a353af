"""What each figure of a sweep means, in the words of the report."""

from __future__ import annotations

TERMS = {
    "Effective tok/s": """Output tokens of all answers of a level over the wall time of that level, all agents
        together. A failed request counts with its time, not with tokens. The range is that of its slowest and fastest
        repeat; the 95 % interval is that of the mean over repeats, given where there are three or more.""",
    "Plateau": """Effective tok/s over that part of a level in which at least 95 % of C were in flight: without the
        tail, in which the last answers run alone.""",
    "Knee, cliff": """The smallest measured C from which on effective tok/s does not grow, and the last before it falls.
        Each lies in a bracket of two measured levels, and is given only where the repeats tell the levels apart.""",
    "Per-task tok/s": """Median over tasks of output tokens over the time from first to last token: the speed that
        one agent sees while its answer streams. With TTFT: over the time from sending to the last token.""",
    "Contention": """1 − per-task tok/s at C over per-task tok/s at C = 1: the share of its solo speed that an agent
        loses to the others.""",
    "Speedup": """Serial wall time (C = 1) over swarm wall time (the largest C), for the same tasks. Not given when a
        request of either failed. By tokens: the ratio of effective tok/s, as answers may differ in length.""",
    "Wall": "From the first request sent to the last answer ended, summed over the repeats of a level.",
    "TTFT, TPOT": """Time to first token, from sending the request or from when it was due; time per output token
        after the first. A gap is the time between two tokens.""",
    "Ideal": "C times the effective tok/s of one agent: what a machine without limits would give.",
    "Engine tok/s": """The engine's own decode speed per stream, median, on the engine's clock. It leaves out
        queue and network.""",
    "Tokens": "Counted by the engine and taken from the usage field of each answer, never by counting chunks.",
    "Timestamps": """Taken by the client on one monotonic clock when bytes arrive, before they are parsed. Warm-up
        requests are left out.""",
    "Client-limited": """The load generator, not the engine, may have set the pace: read such a level as a lower
        bound.""",
}
