"""The same bytes in other pieces: an input begins with two bytes that say how the rest is cut."""

from itertools import pairwise
from random import Random

HEAD_BYTES = 2
MOST_SINGLE_BYTES = 150  # longer inputs are not fed byte by byte


def split_input(data):
    """The choice (0 to 65,535) that an input begins with, and the bytes it is about."""
    return int.from_bytes(data[:HEAD_BYTES], "big"), data[HEAD_BYTES:]


def ways_to_cut(payload, choice):
    """The payload in several pieces, in ways that the choice decides, and byte by byte where it is
    short.
    """
    rng = Random(choice)
    yield cut_at(payload, [rng.randrange(len(payload) + 1)])
    yield cut_at(payload, [rng.randrange(len(payload) + 1) for _ in range(rng.randrange(2, 8))])
    if len(payload) <= MOST_SINGLE_BYTES:
        yield [payload[at : at + 1] for at in range(len(payload))]


def cut_at(payload, places):
    borders = [0, *sorted(places), len(payload)]
    pieces = [payload[begin:end] for begin, end in pairwise(borders)]
    return [piece for piece in pieces if piece]
