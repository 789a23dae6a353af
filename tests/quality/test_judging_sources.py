"""Answers as source text, and values between processes: what the harness makes of them before and after a run."""

import math
from collections import OrderedDict
from typing import NamedTuple

import pytest

from skep.quality.harness.checks import alike, decoded, encoded, shown
from skep.quality.harness.sources import as_one_file, completed


class Point(NamedTuple):
    x: int
    y: int


PROMPT = 'import math\n\n\ndef helper(x):\n    return x\n\n\ndef area(r: float) -> float:\n    """Of a circle."""\n'


def run(parts):
    before, code, _ = parts
    names = {}
    for text in (*before, code):
        exec(compile(text, "x.py", "exec"), names)
    return names


@pytest.mark.parametrize(
    "code",
    [
        "def area(r):\n    return math.pi * helper(r) ** 2",
        "    def area(r):\n        return math.pi * helper(r) ** 2",
        "from __future__ import annotations\nimport math\ndef area(r: float):\n    return math.pi * r**2",
        "    return math.pi * r ** 2",
        "return math.pi * r ** 2",
        "        square = r ** 2\n        return math.pi * square",
        "if r > 0:\n        return math.pi * r ** 2\n    return 0",
        "if r > 0:\n    return math.pi * r ** 2\nreturn 0",
        "square = r ** 2\n    return math.pi * square",
    ],
)
def test_a_function_or_its_body_completes_the_prompt(code):
    assert run(completed(PROMPT, "area", code))["area"](2) == pytest.approx(4 * math.pi)
    nested = f"def other(r):\n    def area(x):\n        {code!r}\n    return area(r)"
    assert run(completed(PROMPT, "area", nested))["area"](2) is None  # a nested one of that name is another


def test_imports_of_files_that_were_joined_are_left_out_and_one_of_the_future_comes_first():
    imports = "from models import (\n    User,\n)\nfrom .other import User\nfrom json import dumps"
    code = f"class User:\n    pass\n\n{imports}\nx = 1"
    assert as_one_file(code) == "class User:\n    pass\n\npass\n\n\npass\nfrom json import dumps\nx = 1"
    right = '"""Text."""\nfrom __future__ import annotations\nx = 1'
    for same in ("from models import User\nx = User()", "not python (", right):
        assert as_one_file(same) == same
    late = "x = 1\nfrom __future__ import annotations\ny: Later = 2"
    assert compile(as_one_file(late), "x.py", "exec")


@pytest.mark.parametrize(
    ("want", "have", "same"),
    [
        (1, 1, True), (1, 1.0, True), (1, True, False), (0.3, 0.1 + 0.2, True), (1, 2, False),
        ([1, [2]], (1, (2,)), True), ([1, 2], [2, 1], False), ([1], {1}, False), ({"1": "a"}, {1: "a"}, True),
        ({"a": [1]}, OrderedDict(a=(1,)), True), ([1, 2], Point(1, 2), True), (None, None, True), (None, 0, False),
        ("a", "a", True), ("1", 1, False), (2**100, 2**100, True), (float("inf"), float("inf"), True),
        ("generator", (n for n in [1]), False),
    ],
)  # fmt: skip
def test_values_are_alike_as_json_would_have_them(want, have, same):
    assert alike(want, decoded(encoded(have))) is same


def test_a_value_that_goes_too_deep_is_like_nothing():
    deep = []
    deep.append(deep)
    assert alike([[]], decoded(encoded(deep))) is False
    assert alike(1, decoded({"int": "x", "more": 1})) is False
    assert alike([1], decoded([1])) is False
    assert shown([1 << 100_000]) == "a value too large to be shown"
