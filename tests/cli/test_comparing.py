"""`skep bench compare` on stored runs made by hand: one row a level, a verdict at the end, and what is refused."""

import json
from itertools import count

import pytest
from typer.testing import CliRunner

from skep.cli.main import app
from skep.errors import UserError
from skep.store.database import open_store
from skep.store.records import Request

STEADY = (1.0, 1.01, 0.99, 1.0)
WORK = {"shape": "steady", "size": "short", "prompt_tokens": None, "max_tokens": 128, "fixed_output": False}


@pytest.fixture
def stored(env, tmp_path):
    """Stores a run: seconds of one request a run of each level. Later calls are newer runs."""
    moments = count(1_000_000_000)
    path = tmp_path / "data" / "skep" / "skep.sqlite3"
    path.parent.mkdir(parents=True, exist_ok=True)

    def keep(levels=None, *, kind="sweep", **work):
        config = {"concurrency": [1, 2], "workload": {**WORK, **work}}
        about = {"model": "m", "url": "http://127.0.0.1:1", "fingerprint": "f", "host": {}, "engine": {}}
        with open_store(path) as store:
            at = float(next(moments))
            run = store.begin_run(kind=kind, created_at=at, config=config, simulated=False, skep_version="0", **about)
            made = [
                _row(level, repeat, seconds)
                for level, walls in (levels or {1: STEADY, 2: STEADY}).items()
                for repeat, seconds in enumerate(walls)
            ]
            store.append_requests(run, made)
            store.end_run(run, at + 1, "done")
        return run

    return keep


@pytest.fixture
def compare(env):
    def call(*words, check):
        done = CliRunner().invoke(app, ["bench", "compare", *words], env=env)
        if isinstance(done.exception, UserError):
            assert check == 2, done.exception
            return f"error: {done.exception.message}\nhint: {done.exception.hint}"
        assert done.exit_code == check, (done.output, done.exception)
        return done

    return call


def _row(level, repeat, seconds):
    start = 100.0 * repeat
    steps = tuple(start + 0.1 + (seconds - 0.1) * n / 10 for n in range(11))
    times = {"first_token_s": steps[0], "last_token_s": steps[-1], "arrivals_s": steps}
    return Request(level, repeat, 0, "fix", start, start + seconds, output_tokens=11, finish_reason="stop", **times)


def slower(by, walls=STEADY):
    return tuple(by * seconds for seconds in walls)


def test_a_comparison_ends_with_its_verdict(stored, compare):
    a, b = stored(), stored()
    done = compare(a, b, check=0)
    assert done.stdout.rstrip().splitlines()[-1] == "no regression beyond 5 % is shown"


def test_a_regression_is_the_last_word_and_exit_code_4(stored, compare):
    a, b = stored(), stored({1: STEADY, 2: slower(2)})
    last = compare(a, b, check=4).stdout.rstrip().splitlines()[-1]
    assert last.startswith("REGRESSION: B is worse than A by more than 5 %: effective tok/s at C=2 (50.0 % worse), ")
    document = json.loads(compare(a, b, "--json", check=4).stdout)
    assert document["verdict"] == "regression"
    assert document["verdict_in_words"] == last
    assert document["regressions"] >= 2
    assert len(document["comparisons"]) == 2 * 6


def test_there_is_one_row_a_level(stored, compare):
    a, b = stored(), stored({1: STEADY, 2: slower(2)})
    head, one, two, _ = compare(a, b, check=4).stdout.rstrip().splitlines()
    assert head.split()[:3] == ["C", "A", "tok/s"]
    assert all(words in head for words in ("tok/s B/A", "TTFT p50 B/A", "TTFT p95 B/A", "TPOT p50 B/A"))
    assert one.split()[0] == "1"
    assert one.count(" = ") + one.endswith(" =") == 4
    assert two.split()[0] == "2"
    assert "0.50 (0.49..0.51) worse" in two
    assert max(map(len, (head, one, two))) <= 120


def test_a_single_worse_is_explained_and_is_no_regression(stored, compare):
    """Worse by itself at 95 %: among twelve figures that is expected by chance."""
    a, b = stored({4: (1.0, 1.02, 0.98, 1.0)}), stored({4: (1.055, 1.075, 1.02, 1.06)})
    done = compare(a, b, "--threshold", "1%", check=0)
    assert "worse" in done.stdout
    assert "effective tok/s at C=4 is worse by itself, by 5." in done.stderr
    assert "one in twenty looks better or worse by chance" in done.stderr
    assert done.stdout.rstrip().endswith("no regression beyond 1 % is shown")


def test_a_loss_within_the_threshold_is_said_to_be_so(stored, compare):
    a, b = stored({4: STEADY}), stored({4: slower(1.2)})
    done = compare(a, b, "--threshold", "50%", check=0)
    assert "effective tok/s at C=4 is 16.7 % worse, within the threshold of 50 %" in done.stderr


def test_what_cannot_be_compared_has_no_verdict(stored, compare):
    a, b = stored({1: (1.0,), 2: (1.0,)}), stored({1: (2.0,), 2: (2.0,)})
    done = compare(a, b, check=0)
    assert done.stdout.rstrip().endswith("no verdict: no figure of the two runs can be compared")
    assert done.stderr.count("shows no spread") == 1
    assert "C=1 and C=2 not compared: one run of a level shows no spread" in done.stderr
    assert json.loads(compare(a, b, "--json", check=0).stdout)["verdict"] == "not comparable"


@pytest.mark.parametrize(
    ("work", "words"),
    [
        ({"max_tokens": 64}, "max_tokens 128 and 64"),
        ({"prompt_tokens": 400}, "prompt_tokens not set and 400"),
        ({"size": "long"}, "size short and long"),
        ({"fixed_output": True}, "fixed_output off and on"),
        ({"shape": "prefill"}, "shape steady and prefill"),
        ({"max_tokens": 64, "prompt_tokens": 400}, "prompt_tokens not set and 400, max_tokens 128 and 64"),
    ],
)
def test_runs_of_other_lengths_are_refused_with_both_values(stored, compare, work, words):
    a, b = stored(), stored(**work)
    refused = compare(a, b, check=2)
    assert f"the lengths differ: {words}" in refused
    assert "--anyway" in refused
    assert "the workloads differ in" in compare(a, b, "--anyway", check=0).stderr


def test_other_shapes_of_the_same_lengths_are_compared_with_a_warning(stored, compare):
    assert "the workloads differ in shape" in compare(stored(), stored(shape="burst"), check=0).stderr


def test_without_names_the_last_two_of_one_kind_are_compared(stored, compare):
    first, second = stored(), stored()
    stored(kind="ab")
    third = stored()
    document = json.loads(compare("--json", check=0).stdout)
    assert (document["a"], document["b"]) == (second, third)
    document = json.loads(compare(first, "--json", check=0).stdout)
    assert (document["a"], document["b"]) == (first, third)
    document = json.loads(compare("last~2", "last", "--json", check=0).stdout)
    assert (document["a"], document["b"]) == (second, third)


def test_a_run_without_a_partner_is_said_to_have_none(stored, compare):
    stored()
    assert "there is no other run of the kind sweep" in compare(check=2)
    assert "there is no run `last~7`" in compare("last~7", "last", check=2)


def test_the_page_has_the_verdict(stored, compare, tmp_path):
    a, b = stored(), stored()
    compare(a, b, "-o", str(tmp_path / "both.html"), check=0)
    assert "No regression beyond 5 % is shown." in (tmp_path / "both.html").read_text()
