"""Files that commands write: one that is there is never replaced without a word."""

import os

import pytest
from in_process import call, refused

from skep.store.database import open_store
from skep.store.records import Request

pytestmark = pytest.mark.usefixtures("paths")  # each test has an installation of its own
KEPT = "this is mine"
PLAN = ("plan", "qwen3-8b", "--gpu", "rtx-3090")
TUNING = (
    "tune",
    "smollm2-135m",
    "--gpu",
    "rtx-3090",
    "--simulate",
    "--budget",
    "20m",
    "--quality",
    "off",
)


@pytest.fixture
def stored(paths):
    """Stores a run of one request and returns its id."""

    def store_run():
        with open_store(paths.store) as store:
            facts = {
                "kind": "sweep",
                "model": "m",
                "url": "http://x",
                "fingerprint": "f",
                "simulated": False,
            }
            facts |= {"config": {}, "host": {}, "engine": {}, "skep_version": "0"}
            run = store.begin_run(created_at=1_790_000_000.0, **facts)
            writers_of = {
                "first_token_s": 0.1,
                "last_token_s": 1.0,
                "prompt_tokens": 9,
                "output_tokens": 50,
            }
            store.append_requests(
                run, [Request(1, 0, 0, "fix", 0.0, 1.0, status=200, **writers_of)]
            )
            store.end_run(run, 1_790_000_009.0, "done")
        return run

    return store_run


def writers(run, second_run):
    return {
        "page.html": [
            ("runs", "report", run, "-o"),
            ("runs", "report", run, second_run, "-o"),
            (*PLAN, "--html"),
            ("tune", "show", "--html"),
        ],
        "table.csv": [("runs", "export", run, "--format", "csv", "-o")],
        "table.md": [("runs", "export", run, "-o")],
        "start.sh": [("export", "qwen3.6-27b-2x3090-replicas", "--as", "shell", "-o")],
    }


def test_a_file_that_is_there_is_refused_by_every_command_and_replaced_on_demand(stored, tmp_path):
    call(*TUNING, check=0)
    for name, commands in writers(stored(), stored()).items():
        file = tmp_path / name
        for words in commands:
            file.write_text(KEPT)
            error = call(*words, name, check=2).error
            assert (
                error.message == f"{'--html' if '--html' in words else '--output'} `{name}` exists"
            )
            assert error.hint == "name another file, or add --overwrite"
            assert file.read_text() == KEPT
            assert call(*words, name, "--overwrite").error is None
            assert KEPT not in file.read_text()


def test_a_report_is_written_to_an_html_file_only(stored):
    stored()
    assert "ends in none of .html, .htm" in refused("runs", "report", "-o", "picture.svg")


def test_the_page_of_the_same_runs_is_replaced(stored):
    first = stored()
    second = stored()
    for _ in range(2):
        assert call("runs", "report", first, "-o", "one.html").error is None
        assert call("runs", "report", first, second, "-o", "both.html").error is None


def test_the_page_of_other_runs_is_not_replaced(stored, tmp_path):
    first = stored()
    second = stored()
    call("runs", "report", first, "-o", "one.html", check=0)
    call("runs", "report", first, second, "-o", "both.html", check=0)
    before = (tmp_path / "one.html").read_text()
    assert "`one.html` exists" in refused("runs", "report", second, "-o", "one.html")
    assert "`both.html` exists" in refused("runs", "report", first, "-o", "both.html")
    assert (tmp_path / "one.html").read_text() == before


def test_a_report_without_a_name_gives_way_to_files_that_are_not_its_own(stored, tmp_path):
    (tmp_path / "report.html").write_text(KEPT)
    first = stored()
    second = stored()
    # The last one finds its own page of before.
    for run, name in ((first, "report-2"), (second, "report-3"), (first, "report-2")):
        done = call("runs", "report", run, check=0)
        assert done.err == f"{run} (done) written to {name}.html\n"
    assert (tmp_path / "report.html").read_text() == KEPT


def test_a_report_without_a_name_takes_the_file_of_somebody_else_on_demand(stored, tmp_path):
    (tmp_path / "report.html").write_text(KEPT)
    assert "report.html\n" in call("runs", "report", stored(), "--overwrite", check=0).err


def test_what_is_no_regular_file_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe.html")
    done = call(*PLAN, "--html", str(tmp_path / "pipe.html"), "--overwrite")
    assert "is not a regular file" in done.error.message
    assert (tmp_path / "pipe.html").is_fifo()
