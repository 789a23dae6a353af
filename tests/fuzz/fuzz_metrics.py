"""Prometheus texts of an engine: each line is read by itself, whatever stands around it."""

import math
import re

from fuzz.pieces import split_input
from skep.wire.prometheus import label_samples, parse_metrics

SEEDS = [
    b'# HELP a b\n# TYPE a counter\na 1\na{x="y"} 2.5\nb{x="a\\"b",y="c"} 3e4 1700000000\n',
    b'vllm:num_requests_running{model_name="m"} 3.0\nvllm:num_requests_waiting 0\n',
    b'a NaN\nb +Inf\nc{} 1\nd{x="}"} 4\n',
]
WORDS = [
    b"{",
    b"}",
    b'="',
    b'"',
    b"\\",
    b"\n",
    b" ",
    b"NaN",
    b"+Inf",
    b"1e999",
    b"# HELP a\n",
    b"a",
    b",",
    b"\r",
    b"\xe2\x80\xa8",
]

# A label set that is whole on its line. Nothing is promised of what follows another one.
_WHOLE = re.compile(r'[^{]*+\{(?>(?:[^"}]++|"(?>(?:[^"\\]++|\\.)*)")*)\}[^{]*+')


def check(data):
    _, payload = split_input(data)
    text = payload.decode("utf-8", "replace")
    read = parse_metrics(text)
    label_samples(text, 'r"0')
    lines = text.split("\n")
    if any(opens_only(line) for line in lines):
        return
    sums = {}
    for line in lines:
        for name, value in parse_metrics(line).items():
            sums[name] = sums.get(name, 0.0) + value
    assert read.keys() == sums.keys(), (read, sums)
    assert all(same(read[name], sums[name]) for name in read), (read, sums)


def opens_only(line):
    return "{" in line and _WHOLE.fullmatch(line) is None


def same(number, expected):
    return number == expected or (math.isnan(number) and math.isnan(expected))
