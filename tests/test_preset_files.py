"""Presets as files: what is read, which key a complaint names, which of one's own goes first, what
is written.
"""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from skep.catalog.presets import Container, Draft, EngineOptions, Mount, Need, Preset, Published
from skep.config.load import file_keys
from skep.config.presets import (
    all_presets,
    find_preset,
    parse_preset,
    preset,
    preset_toml,
    read_preset,
    serve_of,
    shipped_presets,
)
from skep.errors import UserError

WHOLE = (Path(__file__).parent / "data" / "whole_preset.toml").read_text()
PLAIN = WHOLE.partition("served_as")[0]  # what it must say


def refused(text):
    with pytest.raises(UserError) as caught:
        parse_preset(text, "mine", "presets/mine.toml")
    assert caught.value.exit_code == 2
    return caught.value


def test_a_whole_file_becomes_values():
    preset = parse_preset(WHOLE, "mine", "mine.toml")
    assert (preset.name, preset.served_as, preset.capacity, preset.context_tokens) == (
        "mine",
        "mine",
        8,
        16384,
    )
    assert preset.options.draft == Draft("mtp", 3)
    assert preset.env == (("NCCL_P2P_DISABLE", "1"),)
    assert preset.container == Container(
        "vllm/vllm-openai:v0.19.1", (Mount("~/models", "/model"),)
    )
    assert preset.needs == (Need("patch", "patch", "a patch", "it is faster"),)
    assert preset.published == (Published(210.0, "output", 4, needs=("patch",)),)


@pytest.mark.parametrize(
    ("changed", "extra", "name", "value"),
    [
        ({}, "date = 2026-05-01\n", "date", "2026-05-01"),
        (
            {},
            """context = 500000\nextra = ["--hf-overrides", '{"rope_parameters": {}}']\n""",
            "context_tokens",
            500000,
        ),
        ({"vllm": "llamacpp", "2x rtx": "4x rtx"}, "gpus = [0, 1, 2, 3]\n", "gpus", (0, 1, 2, 3)),
    ],
    ids=[
        "a date needs no quotes",
        "a context may be stretched by flags",
        "a layer split over all cards names them all",
    ],
)
def test_what_is_unusual_is_taken_where_it_can_be(changed, extra, name, value):
    text = PLAIN
    for old, new in changed.items():
        text = text.replace(old, new)
    assert getattr(parse_preset(text + extra, "mine", "mine.toml"), name) == value


def test_what_is_not_said_is_unknown_and_a_context_is_enough_for_the_figures():
    preset = parse_preset(PLAIN, "mine", "mine.toml")
    assert (preset.context_tokens, preset.engine_version, preset.date, preset.link) == (
        None,
        None,
        None,
        None,
    )
    assert (preset.served_as, preset.options.given, preset.published) == ("qwen3.6-27b", {}, ())
    assert serve_of(preset).context_tokens == 8192
    lengths = "input_tokens = 30000\noutput_tokens = 2000\n"
    figure = f'[[published]]\ntok_s = 1\nmetric = "output"\nconcurrency = 1\n{lengths}'
    assert serve_of(parse_preset(PLAIN + figure, "mine", "mine.toml")).context_tokens == 32000
    text = (
        PLAIN.replace("2x rtx-3090", "cpu")
        .replace("vllm", "embedded")
        .replace("qwen3.6-27b", "smollm2-135m")
    )
    # Without cards.
    assert serve_of(parse_preset(text, "mine", "mine.toml")).context_tokens == 2048


def test_a_byte_order_mark_before_the_text_does_no_harm(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(PLAIN, encoding="utf-8-sig")
    assert read_preset(path).title == "Mine"
    path.write_text(PLAIN + "x = 1\n", encoding="utf-8-sig")
    with pytest.raises(UserError, match=r"mine\.toml: `x` is an unknown key"):
        read_preset(path)


def test_a_model_that_is_not_in_the_catalogue_is_called_as_its_checkpoint_is():
    text = PLAIN.replace("me/Qwen3.6-27B-AWQ", "/models/Mine.Q4_1.gguf").replace(
        "qwen3.6-27b", "mine.q4_1"
    )
    preset = parse_preset(text, "mine", "presets/mine.toml")
    assert (preset.model, preset.served_as) == ("mine.q4_1", "mine.q4_1")
    error = refused(text.replace('"mine.q4_1"', '"qwen3.6-28b"'))
    assert error.hint.endswith("for a model that is not in the catalogue, `mine.q4_1`")


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("slots =", "slot =", "`slot` is an unknown key"),
        ("link =", "lnk =", "`lnk` is an unknown key"),
        ("kv =", "kvv =", "`options.kvv` is an unknown key"),
        (
            "memory_share = 0.9",
            "memory_share = 1.9",
            "`options.memory_share` = 1.9: must be at most 1",
        ),
        (
            "memory_share = 0.9",
            'memory_share = "0.9"',
            "`options.memory_share` = '0.9': must be a number",
        ),
        (
            'NCCL_P2P_DISABLE = "1"',
            "NCCL_P2P_DISABLE = 1",
            "`env.NCCL_P2P_DISABLE` = 1: must be text in quotes",
        ),
        ("host =", "hst =", "`container.mounts.0.hst` is an unknown key"),
        (
            'inside = "/model"',
            'inside = "model"',
            "`container.mounts.0.inside` = 'model': must match",
        ),
        ('kind = "patch"', 'kind = "magic"', "`need.0.kind` = 'magic': must be 'image', 'patch'"),
        ("tok_s = 210", "tok_s = 0", "`published.0.tok_s` = 0: must be more than 0"),
        ("tok_s = 210", "tok_s = nan", "`published.0.tok_s` = nan: must be more than 0"),
        (
            'metric = "output"',
            'metric = "total"',
            "`published.0.metric` = 'total': must be 'output', 'combined' or",
        ),
        ("concurrency = 4", "concurency = 4", "`published.0.concurency` is an unknown key"),
        ("concurrency = 4\n", "", "`published.0.concurrency` is missing"),
        ("gpus = [2, 3]", 'gpus = [2, "3"]', "`gpus.1` = '3': must be a whole number"),
        (
            'speculation = "mtp:3"',
            'speculation = "mtp"',
            "`options.speculation` = `mtp` is not understood",
        ),
        ("replicas = 2", "replicas = 0", "`replicas` = 0: must be at least 1"),
        ("replicas = 2", "replicas = true", "`replicas` = true: must be a whole number"),
        ('extra = ["--seed", "1"]', "extra = 2", "`extra` = 2: must be a list"),
        ('engine = "vllm"', 'engine = "vlm"', "no engine is called `vlm`"),
        ("qwen3.6-27b", "qwen3.6-28b", "no model is called `qwen3.6-28b`"),
        ("2x rtx-3090", "2x rtx-3095", "no GPU is called `rtx-3095`"),
        ("2x rtx-3090", "0x rtx-3090", "`hardware` = `0x rtx-3090` has no cards"),
        (
            "replicas = 2",
            "replicas = 3",
            "replicas x tp x pp x dp = 3 cards, `hardware` = `2x rtx-3090` has 2 cards",
        ),
        ('kv = "fp8"', 'kv = "fp8"\ntp = 2', "replicas x tp x pp x dp = 4 cards"),
        ('kv = "fp8"', 'kv = "fp8"\ntp = 3', "`tp` = 3 does not divide the heads of qwen3.6-27b"),
        ('kv = "fp8"', 'kv = "fp8"\nep = true', "qwen3.6-27b is dense"),
        ("reserve = 1", "reserve = 4", "`reserve` = 4 of 4 slots"),
        ("2x rtx-3090", "cpu", "`hardware` = `cpu` has no cards for `gpus`"),
        (
            "context = 16384",
            "context = 99999999",
            "`context` = 99999999 is beyond the 262144 tokens of qwen3.6-27b",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_key(old, new, words):
    assert old in WHOLE
    error = refused(WHOLE.replace(old, new, 1))
    assert words in error.message
    assert error.message.startswith("presets/mine.toml: ")
    assert error.hint


def test_every_error_of_a_preset_is_told_at_once_each_in_a_line_of_its_own():
    text = (
        PLAIN.replace("2x rtx-3090", "3x rtx-3095")
        + "reserve = 9\ncolour = 1\n[options]\ntp = 'two'\nkvv = 1\n"
    )
    error = refused(text + "[[published]]\ntok_s = 1\n")
    head, *lines = error.message.splitlines()
    assert head == "presets/mine.toml: 7 keys or values are wrong:"
    assert lines[0].startswith("  `colour` is an unknown key; known here: title, engine")
    assert lines[1:6] == [
        "  `options.kvv` is an unknown key; did you mean `kv`?",
        "  `options.tp` = 'two': must be a whole number",
        "  `published.0.metric` is missing",
        "  `published.0.concurrency` is missing",
        "  `reserve` = 9 of 4 slots leaves none for the others; at most 3",
    ]
    assert lines[6].startswith("  no GPU is called `rtx-3095`; ")
    assert error.hint == "docs/presets.md has every key"


def test_a_single_error_of_a_preset_is_one_line_and_a_likely_key_is_named():
    assert refused(PLAIN + "colour = 1\n").hint.startswith("known here: title, engine")
    assert refused(PLAIN.replace("slots", "slot")).hint == "did you mean `slots`?"
    assert (
        "2x rtx-4090 has no NVLink"
        in refused(PLAIN.replace("3090", "4090") + 'link = "nvlink"\n').message
    )
    text = (
        PLAIN.replace("2x rtx-3090", "5x rtx-3090").replace("qwen3.6-27b", "gemma-4-31b")
        + "[options]\ntp = 5\n"
    )
    assert refused(text).hint.startswith("valid: 1, 2, 4")  # where the cards are there
    assert "is beyond" in refused(PLAIN + "context = 500000\n").message


@pytest.mark.parametrize(
    ("lines", "line"), [('date = "never ends\n', "line 8"), ("gpus = [1,\n", "end of document")]
)
def test_broken_toml_is_named_with_its_line(lines, line):
    message = refused(PLAIN + lines).message
    assert message.startswith("presets/mine.toml: this is not TOML: ")
    assert line in message


def test_ones_own_goes_before_a_shipped_one(tmp_path):
    name = "qwen3.6-27b-2x3090-awq"
    assert find_preset(name, tmp_path).origin == "shipped"
    (tmp_path / f"{name}.toml").write_text(PLAIN)
    assert preset(name, tmp_path).title == "Mine"
    assert all_presets(tmp_path)[name].origin == str(tmp_path / f"{name}.toml")
    assert len(all_presets(tmp_path)) == len(shipped_presets())


def test_a_file_that_cannot_be_read_is_named_and_no_name_leads_out_of_the_folder(tmp_path):
    assert find_preset("../../etc/passwd", tmp_path) is None
    (tmp_path / "latin.toml").write_bytes(b"title = '\xe9'\n")
    for name, words in (("missing", "does not exist"), ("latin", "cannot be read")):
        with pytest.raises(UserError, match=words):
            read_preset(tmp_path / f"{name}.toml")


def test_what_is_served_is_what_the_preset_says():
    serve = serve_of(parse_preset(WHOLE, "mine", "mine.toml"))
    assert (serve.model, serve.checkpoint, serve.preset) == ("mine", "me/Qwen3.6-27B-AWQ", "mine")
    assert (serve.replicas, serve.slots, serve.context_tokens, serve.threads) == (2, 4, 16384, 8)
    assert (serve.gpus, serve.extra, serve.reserve) == ((2, 3), ("--seed", "1"), 1)
    assert serve.options.draft == Draft("mtp", 3)
    assert serve.env == (("NCCL_P2P_DISABLE", "1"),)


def test_every_key_stands_in_the_page():
    text = (Path(__file__).parent.parent / "docs" / "presets.md").read_text()
    for key in (*file_keys(Preset), *file_keys(Published)):
        assert f"\n{key} = " in text or f"[{key}]" in text, key
    (block,) = (part.split("```")[0] for part in text.split("```toml\n")[1:])
    assert parse_preset(block, "mine", "docs").published[0].tok_s == 210.5


SMALL = Preset(
    "tuned",
    "smollm2 on the CPU",
    "embedded",
    "smollm2-135m",
    "smollm2-135m",
    "cpu",
    "a tuning",
    4,
    "smollm2-135m",
)


def again(preset):
    return parse_preset(preset_toml(preset), preset.name, preset.origin)


@pytest.mark.parametrize("name", sorted(shipped_presets()))
def test_a_shipped_preset_is_read_back_as_it_was(name):
    preset = shipped_presets()[name]
    assert again(preset) == preset


def test_a_preset_says_only_what_differs():
    assert again(SMALL) == SMALL
    assert preset_toml(SMALL).splitlines() == [
        'title = "smollm2 on the CPU"',
        'engine = "embedded"',
        'model = "smollm2-135m"',
        'checkpoint = "smollm2-135m"',
        'hardware = "cpu"',
        'source = "a tuning"',
        "slots = 4",
    ]


TEXT = st.text(
    st.characters(exclude_categories=["Cc", "Cf", "Cs", "Zl", "Zp"]), min_size=1, max_size=30
)
COUNT = st.none() | st.integers(1, 9999)
SWITCH = st.none() | st.booleans()
FIGURE = st.none() | st.floats(1e-6, 1e9)
OPTIONS = st.builds(
    EngineOptions,
    kv=st.none() | TEXT,
    memory_share=st.none() | st.floats(0.01, 1),
    batched_tokens=COUNT,
    batch=COUNT,
    threads_batch=st.none() | st.integers(1, 512),
    flash_attention=SWITCH,
    kv_layout=st.sampled_from((None, "unified", "split")),
    kv_ram=st.none() | st.integers(0, 512),
    graphs=SWITCH,
    prefix_cache=SWITCH,
    draft=st.none() | st.builds(Draft, st.just("ngram"), st.integers(1, 64), st.none() | TEXT),
    card_shares=st.lists(st.floats(0.1, 99), max_size=4).map(tuple),
    chat_template=st.none() | TEXT,
)
PUBLISHED = st.builds(
    Published,
    tok_s=st.floats(1e-6, 1e9),
    metric=st.sampled_from(("output", "combined", "decode")),
    concurrency=st.integers(1, 999),
    ttft_ms=FIGURE,
    tpot_ms=FIGURE,
    runs=st.none() | TEXT,
    needs=st.sampled_from(((), ("image",))),
)
CONTAINER = st.builds(
    Container,
    image=TEXT,
    mounts=st.lists(st.builds(Mount, TEXT, TEXT.map("/{}".format), st.booleans()), max_size=2).map(
        tuple
    ),
    ipc_host=st.booleans(),
    before=st.lists(TEXT, max_size=3).map(tuple),
)
ENV = st.dictionaries(
    st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True), TEXT, max_size=3
)


@settings(max_examples=25, deadline=None)
@given(
    OPTIONS,
    st.lists(PUBLISHED, max_size=2).map(tuple),
    st.none() | CONTAINER,
    st.lists(TEXT, max_size=6).map(tuple),
    ENV.map(lambda env: tuple(env.items())),
    COUNT,
)
def test_whatever_a_preset_says_is_read_back(options, published, container, notes, env, threads):
    need = Need("image", "image", "an image", 'the version "that" was measured', None)
    preset = replace(
        SMALL,
        options=options,
        published=published,
        container=container,
        notes=notes,
        env=env,
        threads=threads,
        needs=(need,),
        served_as="mine",
        context_tokens=2048,
        reserve=1,
    )
    assert again(preset) == preset
