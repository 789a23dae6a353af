"""No name hides what a thing is, and a class name stands for one class. `tests/size_budget.toml`
says what is allowed.

`python scripts/size.py` shows the numbers and says how they are counted.
"""

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))
from size import Size, measure, ratchet, read_budget

RATCHET = "run `python scripts/size.py --ratchet`"
# Words for machinery that the field has plain names for. `METAPHORS` are forbidden as a part of a
# module's or class's name (`door` forbids `BatchDoor`), `RIDDLES` as the whole of it: `line` says
# nothing, `log_line` does.
METAPHORS = set(
    """
    aims aloud annex appetite book chronicle climb climbing company courier couriers crew crowd
    dialect discretion door doors dormancy dormant embassy envoy errand errands foresight
    frontdoor ground guest guests headwatch hearsay homenode house housing leap leaps letter
    lodger lodging mishap mishaps nodelife otherdoors patience peek pulse purse putback remains
    renewals resident roster seat sitting spoken stations station strand strands surplus
    surveying surveyor suspicion tally telling tenure terrain tryout upkeep veil verbs versus
    warden wishes
    """.split()  # noqa: SIM905 - a list of words is read more easily
)
RIDDLES = set(
    """
    again asked box cell checkup course desk dividing foreign found front given hearing here
    homes hosted keeping leaving line looking looks memo noted opening orders passive place
    places plots post remaking roll room rooms said sentences shift shown spreading standing stay
    talk timebase told turns wanted wants watched word work
    """.split()  # noqa: SIM905 - a list of words is read more easily
)


@pytest.fixture(scope="module")
def size():
    return measure()


@pytest.fixture(scope="module")
def budget():
    return read_budget()


def is_forbidden(name):
    """`_BatchDoor` and `other_doors` have the words batch, door and other, doors."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    return not METAPHORS.isdisjoint(words) or "".join(words) in RIDDLES


def forbidden(size):
    return Counter(name for name in size.names.values() if is_forbidden(name))


def over(now, allowed):
    return [
        f"{name}: {number}, allowed {allowed.get(name, 0)}"
        for name, number in now.items()
        if number > allowed.get(name, 0)
    ]


def under(now, allowed):
    """What a list still allows and nothing uses."""
    return [
        f"{name}: {now.get(name, 0)}, allowed {number}"
        for name, number in allowed.items()
        if now.get(name, 0) < number
    ]


def test_no_name_is_a_metaphor(size, budget):
    wrong = over(forbidden(size), budget["forbidden_names"])
    assert not wrong, (
        f"call it what the field calls it (METAPHORS and RIDDLES in {__file__}): {wrong}"
    )


def test_a_class_name_stands_for_one_class(size, budget):
    wrong = over(size.shared, budget["shared_classes"])
    assert not wrong, f"there is a class of that name already; give it a name of its own: {wrong}"


def test_what_is_gone_has_left_the_lists(size, budget):
    left_over = under(forbidden(size), budget["forbidden_names"]) + under(
        size.shared, budget["shared_classes"]
    )
    assert not left_over, f"well done; {RATCHET}: {left_over}"


def test_the_ratchet_lowers_and_never_raises():
    old = {
        "shared_classes": {"Answer": 3, "Reading": 2},
        "forbidden_names": {"crew": 1, "door": 2},
    }
    now = Size(
        shared={"Answer": 2, "Choice": 2},
        names={"gateway/door": "door", "cli/lodging": "lodging"},
    )
    lowered = {
        "shared_classes": {"Answer": 2},
        "forbidden_names": {"door": 1},
    }
    assert ratchet(old, now, {}) == lowered
