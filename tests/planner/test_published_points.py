"""A row of a table of measurements becomes a setup, a load and a figure; what it lacks is named."""

import random
from contextlib import suppress
from pathlib import Path

import pytest

from skep.planner.setup import Speculation
from skep.planner.validation import Unpredictable, read_case, read_rows, source_of, validate

DATA = Path(__file__).parent.parent / "data"
ROW = {
    "source_url": "https://github.com/owner/repo/blob/main/a.json", "gpu": "RTX 3090", "n_gpu": "1",
    "model": "Qwen3-8B", "quant_bits": "4", "engine": "vllm", "tp": "1", "replicas": "1", "concurrency": "1",
    "stream_tok_s": "90", "notes": "",
}  # fmt: skip


def case(**changes):
    return read_case(2, {**ROW, **changes})


def rows(name):
    return read_rows((DATA / name).read_text(encoding="utf-8"), name)


@pytest.mark.parametrize(
    ("url", "source"),
    [
        ("https://github.com/Owner/Repo/blob/main/x.json", "github.com/owner/repo"),
        ("https://github.com/owner/repo/issues/7", "github.com/owner/repo"),
        ("https://www.example.dev/en/posts/one", "example.dev"),
        ("https://huggingface.co/datasets/who/what/tree/main", "huggingface.co/datasets/who/what"),
        ("https://huggingface.co/who/model", "huggingface.co/who/model"),
    ],
)
def test_addresses_of_one_place_are_one_source(url, source):
    assert source_of(url) == source


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"gpu": ""}, "gpu"),
        ({"gpu": "Voodoo 2"}, "gpu"),
        ({"n_gpu": ""}, "count"),
        ({"n_gpu": "0"}, "count"),
        ({"model": "Mystery-X"}, "model"),
        ({"quant_bits": ""}, "bits"),
        ({"concurrency": ""}, "concurrency"),
        ({"concurrency": "many"}, "concurrency"),
        ({"stream_tok_s": ""}, "measurement"),
        ({"gpu": "RTX 3090 + CPU expert offload"}, "memory"),
        ({"spec": "block diffusion"}, "model"),
        ({"engine": "trtllm"}, "engine"),
        ({"engine": "sglang (a fork)"}, "engine"),
    ],
)
def test_a_row_without_a_fact_says_which(changes, fact):
    with pytest.raises(Unpredictable, match=f"^{fact}: "):
        case(**changes)
    ((_, why),) = validate([(2, {**ROW, "model": "DeepSeek-V3"})]).unpredicted
    assert why.startswith("memory: ")  # it does not fit


def test_published_is_the_aggregate_else_streams_times_agents_else_from_the_time_per_token():
    """An aggregate that is streams times agents counts no prompts."""
    told = {"concurrency": "4", "agg_tok_s": "100", "stream_tok_s": "40", "tpot_ms": "20"}
    found = [case(**told | less) for less in ({}, {"agg_tok_s": "160"}, {"agg_tok_s": ""})]
    assert [(one.published, one.metric) for one in found] == [(100, "effective"), (160, "decode"), (160, "decode")]
    assert case(**told | {"agg_tok_s": "", "stream_tok_s": ""}).published == 200


def test_a_peak_concurrency_is_told_from_the_streams_that_ran():
    """Little's law: 500 tok/s at 7 ms a token are 4 streams, whatever their peak was."""
    told = case(concurrency="13", agg_tok_s="497", tpot_ms="7.38", ttft_ms="64", output_len="221", stream_tok_s="")
    assert told.load.concurrency == 4
    assert case(concurrency="4", agg_tok_s="500", tpot_ms="7.4", ttft_ms="64", output_len="221").load.concurrency == 4


def test_a_row_says_which_text_was_drafted_what_was_measured_and_in_which_format():
    texts = [case(spec="MTP n=3", text=text).setup.spec.text for text in ("prose", "code", "", "verse")]
    assert texts == ["prose", "code", "mixed", "mixed"]
    told = {"agg_tok_s": "100", "stream_tok_s": "", "tpot_ms": ""}
    metrics = [case(**told, metric=metric).metric for metric in ("effective", "stream", "engine", "")]
    assert metrics == ["effective", "decode", "decode", "effective"]
    formats = [case(quant_bits="4", format=name).setup.quant.id for name in ("nvfp4", "awq", "")]
    assert formats == ["nvfp4", "awq", "int4"]


def test_mixed_cards_are_paced_by_the_slowest_and_layers_split_over_cards_take_turns():
    both = case(gpu="RTX 5090 + RTX 3090 Ti", n_gpu="2", tp="2")
    assert (both.card.bandwidth_gbs, both.card.memory_gib, both.setup.layout.tp) == (1008, 24, 2)
    assert both.rig.default_link.p2p is False
    split = case(engine="llama.cpp", n_gpu="4", tp="", notes="Q4_K_M")
    assert (split.setup.layout.tp, split.setup.layout.pp, split.setup.quant.id) == (1, 4, "q4_k_m")


def test_the_link_is_read_from_what_people_write():
    assert case(n_gpu="2", tp="2", interconnect="NVLink").rig.default_link.kind == "nvlink"
    assert case(n_gpu="2", tp="2", interconnect="PCIe no NVLink").rig.default_link.kind == "pcie"
    slow = case(n_gpu="2", tp="2", interconnect="PCIe3 x16 + PCIe2 x4").rig.default_link
    assert slow.gbs < 5
    assert case(n_gpu="2", tp="2", interconnect="PCIe4 x8/x8 (VM, P2P)").rig.default_link.p2p


def test_drafts_and_pipeline_are_read_from_the_notes():
    assert case(model="gpt-oss-20b", engine="llama.cpp").setup.quant.id == "gguf_mxfp4"
    command = '--speculative_config {"method":"mtp","num_speculative_tokens":3}'
    assert case(spec="spec (see profile)", notes=command).setup.spec == Speculation("mtp", 3)
    assert case(n_gpu="4", tp="1", notes="launch_server --pp-size 4; pp=4").setup.layout.cards == 4


def test_nearly_every_complete_row_becomes_a_case():
    complete = read = 0
    for number, cells in rows("published_points.csv"):
        told = cells["gpu"] and cells["n_gpu"] and cells["quant_bits"] and cells["concurrency"]
        if not told or not (cells["model"] or cells["params_total_b"]):
            continue
        complete += 1
        try:
            read_case(number, cells)
        except Unpredictable as missing:
            complete -= str(missing).startswith("engine: ")  # not one of skep's
            continue
        read += 1
    assert complete > 780
    assert read >= 0.98 * complete


def test_a_row_of_nonsense_is_a_missing_fact_and_never_a_traceback():
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    pool = [cells for _, cells in rows("published_points.csv")]
    junk = ["", "0", "-1", "nan", "inf", "1e400", "x" * 300, "NULL", "1,5", "🐝", "2x", "k=999999", "a100 + ", "+"]
    for _ in range(100):
        cells = dict(chance.choice(pool))
        for name in chance.sample(sorted(cells), chance.randint(1, 6)):
            cells[name] = chance.choice(junk)
        with suppress(Unpredictable):
            assert read_case(2, cells).published > 0
        assert validate([(2, cells)]).rows == 1
