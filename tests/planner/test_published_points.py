"""A row of a table of measurements becomes a setup, a load and a figure;
what it lacks is named.
"""

import random
from contextlib import suppress
from pathlib import Path

import pytest

from skep.planner.setup import Speculation
from skep.planner.validation import Unpredictable, read_case, read_rows, source_of, validate

DATA = Path(__file__).parent.parent / "data"
ROW = {
    "source_url": "https://github.com/owner/repo/blob/main/a.json", "gpu": "RTX 3090",
    "model": "Qwen3-8B", "quant": "awq", "concurrency": "1", "tok_s": "90", "metric": "decode",
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
        ({"gpu": "0x RTX 3090"}, "gpu"),
        ({"tp": "2"}, "gpu"),
        ({"model": "Mystery-X"}, "model"),
        ({"quant": ""}, "quant"),
        ({"concurrency": ""}, "concurrency"),
        ({"concurrency": "many"}, "concurrency"),
        ({"tok_s": ""}, "tok_s"),
        ({"metric": "total"}, "metric"),
        ({"spec": "block diffusion"}, "spec"),
        ({"engine": "trtllm"}, "engine"),
        ({"gpu": "2x RTX 3090", "tp": "2", "link": "fast"}, "link"),
    ],
)
def test_a_row_without_a_fact_says_which(changes, fact):
    with pytest.raises(Unpredictable, match=f"^{fact}: "):
        case(**changes)
    ((_, why),) = validate([(2, {**ROW, "model": "DeepSeek-V3"})]).unpredicted
    assert why.startswith("memory: ")  # it does not fit


@pytest.fixture(scope="module")
def whole_case():
    return case(
        gpu="2x RTX 3090",
        tp="2",
        link="pcie 15.75 p2p",
        engine="sglang",
        kv="fp8",
        slots="8",
        spec="mtp:3",
        text="code",
        concurrency="4",
        input_tokens="1024",
        output_tokens="512",
        utilization="0.9",
        graphs="eager",
        shape="burst",
    )


def test_a_whole_row_becomes_a_setup(whole_case):
    setup = whole_case.setup
    assert (setup.engine, setup.kv.id, setup.slots) == ("sglang", "fp8", 8)
    assert (setup.layout.tp, setup.graphs) == (2, False)
    assert setup.spec == Speculation("mtp", 3, text="code")
    link = whole_case.rig.default_link
    assert (link.gbs, link.p2p) == (15.75, True)


def test_a_whole_row_becomes_a_load_and_a_figure(whole_case):
    load = whole_case.load
    assert (load.concurrency, load.input_tokens, load.shape) == (4, 1024, "burst")
    assert (whole_case.published, whole_case.metric) == (90, "decode")
    assert whole_case.source == "github.com/owner/repo"


def test_mixed_cards_are_paced_by_the_slowest():
    both = case(gpu="RTX 5090 + RTX 3090 Ti")
    assert (both.card.bandwidth_gbs, both.card.memory_gib, both.setup.layout.tp) == (1008, 24, 2)
    assert both.rig.default_link.p2p is False


def test_what_a_row_does_not_say_is_the_usual():
    plain = case(gpu="RTX 5090 + RTX 3090 Ti")
    assert (plain.setup.engine, plain.setup.slots) == ("vllm", None)
    assert plain.load.output_tokens == 512


def test_nearly_every_complete_row_becomes_a_case():
    whole = [
        (n, cells)
        for n, cells in rows("published_points.csv")
        if cells["quant"] and cells["concurrency"]
    ]
    read = 0
    for number, cells in whole:
        with suppress(Unpredictable):
            read_case(number, cells)
            read += 1
    assert read > 780
    assert read >= 0.97 * len(whole)


JUNK = [
    "",
    "0",
    "-1",
    "nan",
    "inf",
    "1e400",
    "x" * 300,
    "NULL",
    "1,5",
    "🐝",
    "2x",
    "k=999999",
    "a100 + ",
    "+",
]


def test_nonsense_in_a_row_is_a_missing_fact_and_no_traceback():
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    pool = [cells for _, cells in rows("published_points.csv")]
    for _ in range(100):
        cells = dict(chance.choice(pool))
        for name in chance.sample(sorted(cells), chance.randint(1, 6)):
            cells[name] = chance.choice(JUNK)
        with suppress(Unpredictable):
            assert read_case(2, cells).published > 0
        assert validate([(2, cells)]).rows == 1
