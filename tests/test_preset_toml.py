"""A preset written down is read back as the same one."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skep.catalog.options import Draft, EngineOptions
from skep.catalog.presets import Container, Mount, Need, Preset, Published
from skep.config.preset_file import preset_toml
from skep.config.presets import parse_preset, shipped_presets

SMALL = Preset(
    "tuned",
    "smollm2 on the CPU",
    "embedded",
    "smollm2-135m",
    "smollm2-135m",
    "smollm2-135m",
    "cpu",
    "a tuning",
    slots=4,
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


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
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
    mounts=st.lists(st.builds(Mount, TEXT, TEXT.map("/{}".format), st.booleans()), max_size=2).map(tuple),
    ipc_host=st.booleans(),
    before=st.lists(TEXT, max_size=3).map(tuple),
)
ENV = st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True), TEXT, max_size=3)


@settings(max_examples=50, deadline=None)
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
        SMALL, options=options, published=published, container=container, notes=notes, env=env, threads=threads,
        needs=(need,), served_as="mine", context_tokens=2048, reserve=1,
    )  # fmt: skip
    assert again(preset) == preset
