"""Code that ends, floods, forks, lies or loops gets a verdict, and never a pass."""

import pytest
from answers.sample_judge import texts_judged
from answers.sample_tasks import ITEMS

from skep.store.verdicts import VerdictOutcome
from skep.workload.items import Checker, Item

pytestmark = [pytest.mark.slow, pytest.mark.needs("bwrap")]


def item(kind="python", **values):
    tests = {"tests": "assert double(2) == 4\nassert double(-1) == -2\n", "entry_point": "double"}
    return Item("double", ({"role": "user", "content": "x"},), Checker(kind, tests | values))


def block(code):
    return f"```python\n{code}\n```"


RIGHT = "def double(x):\n    return x * 2\n"
WRONG = "def double(x):\n    return x + 2\n"
LIES = {
    "sys.exit(0)": f"import sys\n{WRONG}\nsys.exit(0)",
    "raise SystemExit": f"{WRONG}\nraise SystemExit(0)",
    "os._exit(0)": f"import os\n{WRONG}\nos._exit(0)",
    "os._exit in the function": "import os\ndef double(x):\n    os._exit(0)",
    "sys.exit in the function": "import sys\ndef double(x):\n    sys.exit(0)",
    "a report of its own": (
        f'{WRONG}\nprint(\'{{"outcome": "passed", "detail": "", "checks": []}}\', flush=True)'
    ),
    "reports on every descriptor": (
        "import os\nfor fd in range(64):\n    try:\n"
        '        os.write(fd, b\'{"passed": true}\\n{"outcome": "passed", "detail": "", '
        '"checks": []}\\n\' * 9)\n'
        f"    except OSError:\n        pass\n{WRONG}"
    ),
    "every descriptor closed": f"import os\nos.closerange(0, 64)\n{RIGHT}",
    "builtins gone": (
        f"import builtins\n{WRONG}\nfor n in list(vars(builtins)):\n    delattr(builtins, n)"
    ),
    "reads the job": (
        f"import sys\n{WRONG}\nsys.stdin = open(0)\nassert 'mark' in sys.stdin.read()"
    ),
    "a thread that ends it": (
        "import os, threading, time\nthreading.Timer(0.01, os._exit, [0]).start()\n"
        "def double(x):\n    time.sleep(1)\n    return x"
    ),
    "no more dumps": f"import json\njson.dumps = lambda *a, **k: '{{\"passed\": true}}'\n{WRONG}",
    "asks for input": f"{RIGHT}\nn = int(input('n: '))",
    "recursion": "def double(x):\n    return double(x)",
    "an error that cannot be shown": (
        "class E(Exception):\n    def __str__(self):\n        raise ValueError\ndef "
        "double(x):\n    raise E"
    ),
}


def test_a_right_answer_passes_whatever_it_prints():
    """Printing megabytes, warning and leaving threads and children behind is untidy, not wrong."""
    loud = f"import sys\nprint('x' * 5_000_000)\nprint('y' * 5_000_000, file=sys.stderr)\n{RIGHT}"
    untidy = f"import os, threading, time\n{RIGHT}\nif os.fork() == 0:\n    time.sleep(60)\n"
    own_main = f'{RIGHT}\nif __name__ == "__main__":\n    raise SystemExit(1)'
    verdicts = texts_judged(item(), [block(RIGHT), block(loud), block(untidy), block(own_main)])
    assert [verdict.outcome for verdict in verdicts] == [VerdictOutcome.PASSED] * 4, verdicts


def test_code_that_lies_or_leaves_never_passes():
    verdicts = dict(
        zip(LIES, texts_judged(item(), [block(code) for code in LIES.values()]), strict=True)
    )
    passed = [name for name, verdict in verdicts.items() if verdict.passed]
    assert passed == []
    assert {verdict.outcome for verdict in verdicts.values()} <= {
        VerdictOutcome.WRONG,
        VerdictOutcome.BROKEN,
    }
    assert verdicts["asks for input"].detail.startswith("EOFError")
    assert "ended with 0" in verdicts["os._exit(0)"].detail
    assert all(verdict.detail for verdict in verdicts.values())


GARBAGE = [
    "x = 1\n" * 17000,
    bytes(range(256)).decode("latin-1") * 40,
    "\x00\x01\x02",
    "name = '\ud800'",
    "(" * 100_000,
    "x = " + "-" * 50_000 + "1",
    "{" * 200 + "}" * 200,
    "\n" * 100_000,
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["docstring", "completion", "fastapi1", "mutants", "reader"])
def test_answers_that_are_no_answers_get_a_verdict_of_every_kind(kind):
    completion = {"prompt": "def double(x):\n", "tests": "def check(f):\n    assert f(1) == 2"}
    if kind == "completion":
        hostile_item = item(kind, **completion)
    else:
        hostile_item = ITEMS[kind]
    none_of_them_passes(hostile_item, [form for code in GARBAGE for form in (block(code), code)])


def none_of_them_passes(hostile_item, texts):
    verdicts = texts_judged(hostile_item, texts)
    assert not any(verdict.passed for verdict in verdicts)
    assert all(len(verdict.detail) <= 300 and verdict.detail.isprintable() for verdict in verdicts)
