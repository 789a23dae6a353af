"""Requests made by hand, so that each of their figures can be checked without a computer."""

from skep.bench.tasks import BenchTask
from skep.host.facts import NvidiaReport, read_host
from skep.store.records import Request

HOST = read_host(NvidiaReport())


def request(*arrivals, start=0.0, end=None, tokens=None, level=1, repeat=0, index=0, **fields):
    """Return a request whose tokens arrived at `arrivals`, and that ended with the last."""
    if arrivals:
        times = {"first_token_s": arrivals[0], "last_token_s": arrivals[-1]}
    else:
        times = {}
    times |= {"output_tokens": tokens, "arrivals_s": tuple(arrivals), **fields}
    ended_s = end if end is not None else (arrivals or (start,))[-1]
    return Request(level, repeat, index, "fix", start, ended_s, **times)


def evenly(first, last, number):
    """Return so many moments from the first to the last."""
    return tuple(first + (last - first) * n / max(1, number - 1) for n in range(number))


def task(index=0, tokens=2, text="hello", **fields):
    return BenchTask(
        1, 0, index, "fix", [{"role": "user", "content": f"{index} {text}"}], tokens, **fields
    )


def tasks(number, **fields):
    return [task(index, **fields) for index in range(number)]
