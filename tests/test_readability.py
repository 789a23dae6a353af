"""What a line says may only become less, and names may only become clearer:
`tests/size_budget.toml` has the numbers.

`make size` shows them; scripts/readability.py says how they are counted.
"""

import gc
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
from readability import TreeCounts, count_tree
from size import TREES, Size, ratchet, read_budget, read_trees, readability_budget

RATCHET = "run `python scripts/size.py --ratchet`"
SLACK = 0.95  # of what is allowed: below it the budget has to follow
TABLES = ("dense_modules", "complex_functions", "long_tests")


@pytest.fixture(scope="module")
def budget():
    return read_budget()


@pytest.fixture(scope="module")
def today():
    gc.disable()  # trees have no cycles, and a third of the time would go into looking for them
    try:
        return readability_budget(read_trees())
    finally:
        gc.enable()


def counted(tmp_path, text, name="module.py"):
    (tmp_path / name).write_text(text)
    return count_tree(tmp_path)


@pytest.mark.parametrize("tree", TREES)
def test_no_rate_rises(today, budget, tree):
    allowed = budget[f"{tree}.rates"]
    over = {
        name: f"{rate}, allowed {allowed[name]}"
        for name, rate in today[f"{tree}.rates"].items()
        if rate > allowed[name]
    }
    assert not over, (
        f"say one thing a line, in words that mean something (scripts/readability.py): {over}"
    )


@pytest.mark.parametrize("tree", TREES)
def test_a_rate_that_has_fallen_stays_down(today, budget, tree):
    now = today[f"{tree}.rates"]
    low = {
        name: now[name]
        for name, rate in budget[f"{tree}.rates"].items()
        if now[name] < SLACK * rate
    }
    assert not low, f"well done; {RATCHET}: {low}"


def test_a_package_says_no_more_than_its_features_need(today, budget):
    allowed = budget["src.nodes"]
    over = {
        name: number
        for name, number in today["src.nodes"].items()
        if number > allowed.get(name, 0)
    }
    assert not over, (
        f"a feature raises its package's number in tests/size_budget.toml, with a word why: {over}"
    )


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("title", TABLES)
def test_nothing_enters_a_list_or_grows_in_it(today, budget, tree, title):
    allowed = budget.get(f"{tree}.{title}", {})
    over = {
        name: number
        for name, number in today[f"{tree}.{title}"].items()
        if number > allowed.get(name, 0)
    }
    assert not over, f"split it: {over}"


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("title", TABLES)
def test_what_has_become_simple_has_left_its_list(today, budget, tree, title):
    left_over = budget.get(f"{tree}.{title}", {}).keys() - today[f"{tree}.{title}"].keys()
    assert not left_over, f"well done; {RATCHET}: {sorted(left_over)}"


def test_values_that_are_joined_on_one_line_are_counted(tmp_path):
    counts = counted(tmp_path, "a, b = 1, 2\nc, d = f()\n(e, g), h = (1, 2), 3\n")
    assert counts.joined_assignments == 2


def test_a_conditional_expression_in_another_one_is_nested(tmp_path):
    counts = counted(tmp_path, "a = 1 if x else 2\nb = 1 if x else (2 if y else 3)\n")
    assert (counts.conditional_expressions, counts.nested_conditionals) == (3, 1)


def test_parameters_variables_and_attributes_are_names(tmp_path):
    counts = counted(
        tmp_path,
        "def f(one, request):\n    found = one\n    self.told = found\n    return request\n",
    )
    assert (counts.bindings, counts.empty_names) == (4, 3)


def test_docstrings_comments_and_blank_lines_are_no_code(tmp_path):
    counts = counted(tmp_path, '"""Two\nlines."""\n\n# a comment\nx = 1\n')
    assert counts.code_lines == 1


def test_the_formatter_may_be_off_for_a_table_of_literals_only(tmp_path):
    table = "T = [\n    1, 2,\n]  # fmt: skip\n"
    call = "f(\n    1, 2,\n)  # fmt: skip\n"
    assert counted(tmp_path, table + call).format_skips == 1


def test_a_function_of_sixteen_ways_is_complex(tmp_path):
    branches = "".join(f"    if x == {number}:\n        pass\n" for number in range(15))
    counts = counted(
        tmp_path, f"def f(x):\n{branches}\ndef g(x):\n{branches[: branches.rindex('    if')]}"
    )
    assert counts.complex_functions == {"module.f": 16}


def test_a_test_of_eight_asserts_is_long(tmp_path):
    asserts = "    assert x\n" * 8
    counts = counted(tmp_path, f"def test_a(x):\n{asserts}\ndef helper(x):\n{asserts}")
    assert counts.long_tests == {"module.test_a": 8}


def test_the_ratchet_lowers_numbers_and_empties_lists():
    old = {"src.rates": {"density": 9.0}, "src.complex_functions": {"a.f": 20, "a.g": 30}}
    counts = TreeCounts(code_lines=10, complex_functions={"a.f": 18, "a.new": 40})
    counts.nodes["a"] = 80
    lowered = ratchet(old, Size(), {"src": counts})
    assert lowered == {"src.rates": {"density": 8.0}, "src.complex_functions": {"a.f": 18}}
