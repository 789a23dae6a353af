"""`skep report`, `runs`, `export` and `compare` on runs whose answers were judged."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from skep.cli.main import app
from skep.errors import SkepError, UserError
from skep.paths import user_paths
from skep.store.database import open_store
from skep.store.records import LevelFact, Request
from skep.store.verdicts import Verdict, VerdictOutcome
from skep.workload.items import Checker, Item

pytestmark = pytest.mark.slow

ITEMS = [Item(f"d/{i}", ({"role": "user", "content": "?"},), Checker("exact", {"answer": "1"})) for i in range(40)]
PASSES = ((1, 0, "base"), (1, 1, "again"), (4, 0, "load"))


def _row(level, repeat, index, kind, traffic, at, **more):
    times = {"first_token_s": at + 0.1, "last_token_s": at + 0.9, "output_tokens": 20}
    return Request(level, repeat, index, kind, at, at + 1.0, traffic=traffic, answer="1", **times, **more)


def _begin(store, kind, config, at, model="m"):
    return store.begin_run(
        kind=kind, created_at=at, model=model, url="http://127.0.0.1:1/v1", fingerprint="f", config=config, host={},
        engine={}, simulated=False, skep_version="0.1.0",
    )  # fmt: skip


def _quality_run(store, at):
    config = {"bank": "drills:1", "delta": 0.03, "concurrency": [1, 4]}
    run_id = _begin(store, "quality", config, at)
    store.append_items(run_id, ITEMS)
    rows = [
        _row(level, repeat, i, item.id, traffic, 100.0 * n + i)
        for n, (level, repeat, traffic) in enumerate(PASSES)
        for i, item in enumerate(ITEMS)
    ]
    store.append_requests(run_id, rows)
    outcomes = (VerdictOutcome.WRONG, VerdictOutcome.PASSED)
    verdicts = [Verdict(row.level, row.repeat, row.index, row.kind, outcomes[row.index % 2]) for row in rows]
    store.append_verdicts(run_id, verdicts)
    facts = [LevelFact(level, repeat, "whole_block", {"begin": 0, "end": len(ITEMS)}) for level, repeat, _ in PASSES]
    facts += [LevelFact(level, repeat, "paired_with", {"level": 1, "repeat": 0}) for level, repeat, _ in PASSES[1:]]
    store.append_level_facts(run_id, facts)
    store.end_run(run_id, at + 1, "done")
    return run_id


def _mixed_run(store, at, model="m"):
    run_id = _begin(store, "mixed", {"form": "published", "repeats": 1, "concurrency": [1, 2]}, at, model)
    rows = [
        _row(level, 0, turn, f"P1.{turn + 1}", "primary", 10.0 * level + turn, session=0, turn=turn)
        for level in (1, 2)
        for turn in range(3)
    ]
    rows.append(_row(2, 0, 1000, "S1", "side", 20.0))
    store.append_requests(run_id, rows)
    store.append_verdicts(
        run_id,
        [Verdict(row.level, 0, row.index, row.kind, VerdictOutcome.PASSED, keywords=row.kind != "S1") for row in rows],
    )
    store.end_run(run_id, at + 1, "done")
    return run_id


@pytest.fixture
def stored(tmp_path, monkeypatch):
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.chdir(tmp_path)
    path = user_paths({"XDG_DATA_HOME": str(tmp_path / "XDG_DATA_HOME"), "HOME": str(tmp_path)}).store
    path.parent.mkdir(parents=True, exist_ok=True)
    with open_store(path) as store:
        runs = {
            "quality": _quality_run(store, 1e9),
            "mixed": _mixed_run(store, 1.1e9, "one"),
            "other": _mixed_run(store, 1.2e9, "two"),
            "empty": _begin(store, "mixed", {"form": "published"}, 1.3e9),
            "sweep": _begin(store, "sweep", {"concurrency": [1]}, 1.4e9),
        }
        store.append_requests(runs["sweep"], [_row(1, 0, 0, "fix", "", 0.0)])
        for name in ("empty", "sweep"):
            store.end_run(runs[name], 1.5e9, "done")
    return runs


def _run(*args):
    """The exit of a command; an error a user can cause is given as it is."""
    done = CliRunner().invoke(app, list(args))
    if isinstance(done.exception, SkepError):
        return done.exception
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_quality_run_is_drawn(stored, tmp_path):
    """Forty items cannot exclude a loss of three points: the picture says so."""
    _run("report", stored["quality"], "-o", "q.svg")
    drawn = (tmp_path / "q.svg").read_text()
    assert drawn.startswith("<svg")
    assert "nothing can be claimed: C=4 is not shown" in drawn


def test_mixed_runs_are_drawn_alone_and_side_by_side(stored, tmp_path):
    _run("report", stored["mixed"], "-o", "one.html")
    assert "no loss is shown" in (tmp_path / "one.html").read_text()
    _run("report", stored["mixed"], stored["other"], "-o", "two.svg")
    assert "one / two" in (tmp_path / "two.svg").read_text()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("mixed", "sweep"), "of the kind mixed"),
        (("sweep", "quality"), "of the kind sweep"),
        (("quality", "quality"), "quality runs"),
        (("empty",), "no measured requests"),
    ],
)
def test_what_has_no_common_picture_is_one_clear_line(stored, names, words):
    error = _run("report", *(stored[name] for name in names))
    assert isinstance(error, UserError)
    assert words in str(error)


def test_judged_runs_are_listed_with_the_others(stored):
    text = _run("runs")
    assert all(run_id in text for run_id in stored.values())
    assert "quality" in text


def test_requests_of_judged_runs_are_exported_with_their_verdicts(stored):
    for kind in ("mixed", "quality"):
        rows = _run("bench", "export", stored[kind], "--format", "csv", "--requests")
        assert rows.splitlines()[0].endswith("item,outcome,detail,keywords,checker")
        assert "passed" in rows


def test_levels_of_judged_runs_are_neither_exported_nor_compared(stored):
    """Their walls span what other arms and tasks did meanwhile: a tok/s made of them was off by a factor of seven."""
    orders = (
        ("export", "mixed"),
        ("export", "quality"),
        ("compare", "mixed", "other"),
        ("compare", "quality", "mixed"),
    )
    for command, *names in orders:
        error = _run("bench", command, *(stored[name] for name in names))
        assert isinstance(error, UserError)
        assert "is about answers, not about levels of speed" in str(error)
