"""What anybody may see of stored runs: figures, and nothing that a person, a server or a machine
would call its own.
"""

import json

import pytest
from msgspec.structs import replace
from stored_runs import ANSWER, ENGINE, PROMPT, RTX, WORKLOAD, installation, put_run, requests

from skep.monitor.records import EventKind, MonitorEvent
from skep.monitor.store import SeriesStore
from skep.quality.trial_figures import PAIRED_WITH, WHOLE_BLOCK
from skep.store.records import LevelFact, Request
from skep.store.verdicts import Verdict, VerdictOutcome
from skep.units import public_name
from skep.web.context import Site, public_document, public_facts
from skep.workload.items import Checker, Item

MADE = {}
SECRETS = ("10.9.8.7", "box.internal", "/srv/", "LEAK", PROMPT, ANSWER, "127.0.0.1:8400")
CONFIG = {
    "concurrency": [1, 2, 4], "workload": {**WORKLOAD, "shape": ("see "
"http://10.9.8.7/LEAK"), "system_prompt": "LEAK"},
    "trace": "LEAK.jsonl", "target": "http://box.internal", "api_key": 12345678, "note": "LEAK",
    "headers": {"x": 1}, "file": "/srv/LEAK",
    "results": [{"tokenizer_id": "/srv/LEAK", "backend": "vllm", "requests": 7}],
}  # fmt: skip
TOLD = {**ENGINE, "server": ("nginx at "
"box.internal"), "model_path": "/srv/LEAK.gguf", "argv": ["--key", "LEAK"],
        "meta": {"n_params": 8, "general.name": "LEAK"}, "/srv/LEAK": 1}  # fmt: skip
NEAR = {**RTX, "hostname": "LEAK", "user": "LEAK", "os": "Linux 6.1 box.internal"}


def fill(store):
    facts = {
        "config": CONFIG,
        "engine": TOLD,
        "host": NEAR,
        "model": "https://me:LEAK@box.internal/m/qwen3-8b?k=LEAK",
    }
    MADE["a"] = put_run(store, 0, **facts)
    MADE["b"] = put_run(
        store, 1, tokens=120, **{**facts, "engine": {**TOLD, "slots": 8, "build": "in /srv/LEAK"}}
    )
    MADE["server"] = run = put_run(store, 2, levels=(), end=None, **facts)
    private = {"finish_reason": "LEAK", "replica": "http://10.9.8.7", "kind": "/srv/LEAK"}
    store.append_requests(run, (replace(row, **private) for row in requests((1, 2))))
    store.end_run(run, 1_790_300_000.0, "done")
    MADE["quality"] = _quality(store, facts)


def _quality(store, facts):
    items = [
        Item(
            f"/srv/LEAK/{n}",
            ({"role": "user", "content": PROMPT},),
            Checker("exact", {"answer": "LEAK"}),
            family=f"/srv/LEAK{n % 2}",
        )
        for n in range(4)
    ]
    run = put_run(
        store,
        3,
        kind="quality",
        levels=(),
        end=None,
        **{
            **facts,
            "config": {"bank": "/srv/mine.toml", "concurrency": [1, 4], "delta": 0.03, "items": 4},
        },
    )
    store.append_items(run, items)
    for repeat, (level, arm) in enumerate(((1, "base"), (4, "load"))):
        rows = [
            Request(
                level,
                repeat,
                n,
                item.id,
                n,
                n + 1.0,
                first_token_s=n + 0.1,
                last_token_s=n + 1.0,
                prompt_tokens=9,
                output_tokens=9,
                status=200,
                traffic=arm,
                prompt=PROMPT,
                answer=ANSWER,
            )
            for n, item in enumerate(items)
        ]
        store.append_requests(run, rows)
        store.append_verdicts(
            run,
            [
                Verdict(level, repeat, n, item.id, VerdictOutcome.PASSED, detail="LEAK")
                for n, item in enumerate(items)
            ],
        )
        store.append_level_facts(
            run, [LevelFact(level, repeat, WHOLE_BLOCK, {"begin": 0, "end": 4})]
        )
    store.append_level_facts(run, [LevelFact(4, 1, PAIRED_WITH, {"level": 1, "repeat": 0})])
    store.end_run(run, 1_790_300_000.0, "failed", "http://10.9.8.7/LEAK")
    return run


def test_nothing_private_is_in_any_list_page_or_file(public):
    looked = ["/runs", "/runs?q=leak", "/api/runs.json", "/runs?sort=best",
              "/api/plan.json?model=qwen3-8b&card=rtx-3090&count=2", "/runs/nobody",
              "/plan/fragment?model=qwen3-8b&card=rtx-3090&count=2"]  # fmt: skip
    for run in MADE.values():
        looked += [f"/runs/{run}", f"/api/run.json?id={run}"]
    for path in looked:
        _, body = public(path)
        assert [secret for secret in SECRETS if secret in body] == [], path


@pytest.mark.parametrize("end", ["a/report.html", "server", "quality", "compare"])
def test_nothing_private_is_in_any_report_or_picture(public, end):
    name, _, rest = end.partition("/")
    if name in MADE:
        path = f"/runs/{MADE[name]}/{rest}"
    else:
        path = f"/compare?runs={MADE['a']},{MADE['b']}"
    path = path.removesuffix("/")
    response, body = public(path)
    assert response.status == 200
    assert len(body) > 3000
    assert [secret for secret in SECRETS if secret in body] == []


def test_figures_are_told_and_the_connection_has_no_words_of_servers_and_people(public, paths):
    document = public.json(f"/api/run.json?id={MADE['a']}")
    assert document["config"]["concurrency"] == [1, 2, 4]
    assert document["config"]["workload"] == WORKLOAD
    assert document["config"]["results"] == [{"backend": "vllm", "requests": 7}]
    assert document["engine"] == "vllm 0.19"
    assert document["machine"] == "2x RTX 3090"
    assert document["levels"][0]["finish_reasons"] == [["stop", 1]]
    with Site(paths, public=True).store() as store:
        rows = store.requests(MADE["server"])
    assert {(row.kind, row.replica, row.finish_reason, row.answer) for row in rows} == {
        ("task", "", None, None)
    }


def test_words_are_told_only_under_names_that_hold_no_others():
    facts = {
        "engine": "vllm",
        "remark": "mine",
        "slots": 4,
        "secret": 1,
        "gpus": [{"name": "RTX 3090", "uuid": "x"}],
    }
    assert json.loads(public_facts(json.dumps(facts))) == {
        "engine": "vllm",
        "slots": 4,
        "gpus": [{"name": "RTX 3090"}],
    }


def test_a_word_that_could_be_an_address_or_a_path_is_not_told():
    private = (
        "http://x",
        "see /etc/x",
        "at 10.0.0.1",
        "host.lan",
        "~me",
        "me@there",
        "C:\\x",
        "localhost",
        "x:8000",
    )
    for words in private:
        assert public_facts(json.dumps({"engine": words})) == "{}", words
    for words in (
        "simulated: Qwen/Qwen3-8B AWQ, KV BF16, TP=2 on 2x rtx-3090, as vllm",
        "b6123-1a2b",
        "570.86.10",
    ):
        assert json.loads(public_facts(json.dumps({"engine": words}))) == {"engine": words}


def test_free_documents_keep_the_names_of_files():
    free_document = {
        "against": "http://10.9.8.7:8000/v1", "file": "/srv/x/levels.json", "seed": 1,
        "shape": "50/50 mix", "results": [{"headers": {"x": "secret"}, "tool": "guidellm"}],
        "argv": ["secret"],
    }  # fmt: skip
    assert json.loads(public_document(json.dumps(free_document))) == {
        "against": "",
        "file": "levels.json",
        "seed": 1,
        "shape": "50/50 mix",
        "results": [{"headers": {"x": ""}, "tool": "guidellm"}],
        "argv": [""],
    }


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("/srv/m/a.gguf", "a.gguf"),
        ("~/a.gguf", "a.gguf"),
        ("/", "a model"),
        ("C:\\m\\a.gguf", "a.gguf"),
        ("s3://bucket/a/b.gguf", "b.gguf"),
        ("https://me:pw@host", "a model"),
        ("data/private/b.gguf", "b.gguf"),
    ],
)
def test_a_model_that_is_a_file_or_an_address_is_told_by_its_last_part(model, expected):
    assert public_name(model) == expected


@pytest.mark.parametrize(
    ("note", "expected"),
    [
        ("moved to /srv/models", "note"),
        ("now '/srv/models'", "note"),
        ("model=~/models", "note"),
        ('in "/srv"', "note"),
        ("new fan, 50/50 split", "new fan, 50/50 split"),
    ],
)
def test_a_note_that_names_a_path_is_told_without_its_words(tmp_path, note, expected):
    event = MonitorEvent(12.0, EventKind.NOTE, note)
    paths = installation(tmp_path, lambda store: SeriesStore(store).append_event(event))
    with Site(paths, public=True).series() as series:
        assert [event.text for event in series.events(0, 99)] == [expected]
