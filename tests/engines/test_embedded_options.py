"""The embedded engine's knobs: as words, as refusals before the start, as what a real one does and dies of."""

import json
import os
import subprocess
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from skep.catalog.options import Draft, EngineOptions
from skep.deploy.launches import KV_BYTES
from skep.engines.base import EXIT_FINAL, REPORT_FD, Launch
from skep.engines.embedded import Embedded
from skep.engines.llama import KV_TYPES, batch_of
from skep.errors import UserError
from skep.paths import user_paths
from skep.weights.pull import installed, pull

MODEL = "smollm2-135m"


def launch_of(weights=Path("/models/m.gguf"), slots=2, context_tokens=256, threads=1, **options):
    return Launch("e-0", "embedded", MODEL, weights, slots, context_tokens, threads, options=EngineOptions(**options))


def words(**fields):
    argv = Embedded().argv(launch_of(**fields))
    return argv[argv.index(REPORT_FD) + 1 :]


# Words


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, []),
        ({"batch": 2048, "kv_layout": "unified", "prefix_cache": True}, []),
        ({"batched_tokens": 128}, ["--micro-batch", "128"]),
        ({"batched_tokens": 4096}, ["--micro-batch", "4096", "--batch", "4096"]),
        ({"batch": 256, "threads_batch": 4}, ["--threads-batch", "4", "--batch", "256"]),
        ({"kv": "q8_0"}, ["--kv", "q8_0", "--flash-attention", "on"]),
        ({"kv": "bf16"}, ["--kv", "bf16"]),
        ({"flash_attention": False}, ["--flash-attention", "off"]),
        ({"kv_layout": "split", "prefix_cache": False}, ["--split", "--no-prefix-cache"]),
        ({"draft": Draft("ngram", 8)}, ["--ngram", "8"]),
    ],
)
def test_only_what_differs_from_its_own_way_is_told(options, told):
    assert words(**options) == told


def test_a_batch_that_nobody_names_holds_every_slot_and_its_drafts():
    """llama.cpp ends itself under load where they overflow it."""
    assert batch_of(launch_of(slots=64, draft=Draft("ngram", 48))) == 64 * 49
    assert batch_of(launch_of(slots=4, draft=Draft("ngram", 8))) == 2048


# Refusals


@pytest.mark.parametrize(
    ("options", "said", "instead"),
    [
        ({"kv": "fp8"}, 'kv = "fp8" is not known', ", ".join(KV_TYPES)),
        ({"kv": "q4_0", "flash_attention": False}, 'kv = "q4_0" wants flash attention', "leave flash_attention out"),
        ({"batch": 256, "batched_tokens": 512}, "batched_tokens = 512 is more than batch = 256", "raise `batch`"),
        ({"batch": 1}, "batch = 1 does not hold a token of 2 slots", "2 or more"),
        (
            {"batch": 16, "draft": Draft("ngram", 8)},
            "batch = 16 does not hold a token of 2 slots with 8 drafted tokens each",
            "18 or more",
        ),
        ({"kv_layout": "paged"}, 'kv_layout = "paged"', "unified, split"),
        ({"draft": Draft("mtp", 3)}, "speculation by `mtp` cannot be", "use ngram"),
        ({"draft": Draft("draft", 3)}, "speculation by `draft` cannot be", "use ngram"),
        ({"tp": 2}, "tp = 2 cannot be", "llamacpp"),
        ({"quant": "awq"}, 'quant = "awq" is the file\'s own', "another GGUF"),
        ({"memory_share": 0.9}, "memory_share = 0.9", "leave it out"),
        ({"graphs": False}, "graphs = false", "leave it out"),
        ({"chunked_prefill": False}, "chunked_prefill = false", "leave it out"),
        ({"reasoning_parser": "qwen3"}, "reasoning_parser", "llamacpp"),
    ],
)
def test_what_it_does_not_take_is_one_line_before_the_start(options, said, instead):
    pytest.importorskip("xllamacpp")
    with pytest.raises(UserError, match="embedded: ") as caught:
        Embedded().check(launch_of(**options))
    assert said in caught.value.message
    assert instead in caught.value.hint


def test_every_type_of_cache_has_its_size():
    """A replica's room is worked out with it; a type without one counts as 16 bits."""
    assert set(KV_TYPES) == {*KV_BYTES, "f16", "bf16"}


# For real


@pytest.fixture(scope="module")
def weights():
    cache = user_paths(os.environ).cache
    return installed(MODEL, cache) or pull(MODEL, cache_dir=cache).path


@contextmanager
def running(launch):
    read_fd, write_fd = os.pipe()
    argv = [part if part != REPORT_FD else str(write_fd) for part in Embedded().argv(launch)]
    with subprocess.Popen(argv, pass_fds=[write_fd], stderr=subprocess.DEVNULL) as process:
        os.close(write_fd)
        try:
            with os.fdopen(read_fd) as pipe:
                yield json.loads(pipe.readline())["url"]
        finally:
            process.terminate()  # else a failed assertion would wait for it for ever


def asked(url, text, tokens=16):
    body = {"prompt": text, "max_tokens": tokens, "temperature": 0}
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


LIST = "one, two, three, four, five, six, one, two, three, four, five, six, one, two, three"


@pytest.mark.engine
def test_all_of_them_at_once_serve_and_do_what_they_say(weights):
    launch = launch_of(
        weights, kv="q8_0", batch=64, batched_tokens=32, threads_batch=1, kv_layout="split", prefix_cache=False,
        draft=Draft("ngram", 4),
    )  # fmt: skip
    Embedded().check(launch)
    with running(launch) as url:
        first, second = asked(url, LIST), asked(url, LIST)
        with pytest.raises(urllib.error.HTTPError, match="400"):
            asked(url, "word " * 900)
        with urllib.request.urlopen(f"{url}/slots") as slots:
            assert [slot["n_ctx"] for slot in json.load(slots)] == [256, 256]
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    assert second["choices"][0]["text"].startswith(", four, five, six")
    assert second["timings"]["cache_n"] == 0
    assert 0 < second["timings"]["draft_n_accepted"] <= second["timings"]["draft_n"]


CAT = "Repeat after me: the cat sat on the mat. the cat sat on the mat. the cat"
SAME = {
    "split": {"kv_layout": "split"},
    "ngram": {"draft": Draft("ngram", 4)},
    "small batches": {"batch": 32, "batched_tokens": 8},
    "threads for prompts": {"threads_batch": 2},
    "no prefix cache": {"prefix_cache": False},
}


@pytest.mark.slow
@pytest.mark.engine
def test_what_only_costs_or_saves_time_leaves_the_answers_as_they_are(weights):
    """Drafts are checked by the model, and a cache cut apart is the same cache. A quantized one may round otherwise."""

    def answers(**options):
        launch = launch_of(weights, **options)
        Embedded().check(launch)
        with running(launch) as url, ThreadPoolExecutor(2) as agents:
            found = list(agents.map(lambda text: asked(url, text), (LIST, CAT)))
            found += [asked(url, CAT)]  # by itself, and where there is a cache, with what is in it
        return [one["choices"][0]["text"] for one in found], [one["timings"] for one in found]

    plain, _ = answers()
    assert plain[1] == plain[2]
    for name, options in SAME.items():
        texts, timings = answers(**options)
        assert texts == plain, name
        drafted = sum(one.get("draft_n_accepted", 0) for one in timings)
        assert (drafted > 0) == (name == "ngram")
    rounded, _ = answers(kv="q8_0")
    assert rounded[0].startswith(", four, five, six")


@pytest.mark.engine
@pytest.mark.parametrize(
    ("options", "cause", "said", "changed"),
    [
        (
            {"kv": "q8_0", "flash_attention": False},
            "a quantized KV cache (q8_0) does not go without flash attention",
            "quantized V cache requires flash_attn",
            "flash_attention off -> unset",
        ),
        ({"batch": 1}, "a batch of 1 tokens does not hold a token of 2 slots", "n_outputs_max", "batch 1 -> unset"),
    ],
)
def test_a_wrong_combination_dies_with_its_cause_its_line_and_its_remedy(weights, options, cause, said, changed):
    launch = launch_of(weights, **options)
    argv = [part if part != REPORT_FD else "1" for part in Embedded().argv(launch)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode in (EXIT_FINAL, -6)
    found = Embedded().explain(launch, done.returncode, done.stderr.splitlines())
    assert (found.cause, found.changed, found.final) == (cause, changed, True)
    assert said in found.evidence
    assert found.remedy
