"""How models call tools: every model of the catalogue is covered, and a checkpoint may differ from
its model.
"""

import tomllib
from collections import Counter
from importlib.resources import files

import pytest

from skep.catalog.models import all_checkpoints, geometries
from skep.catalog.tool_calling import (
    find_tool_calling,
    hub_name,
    release_of,
    usable,
    with_template,
)

TABLES = tomllib.loads(
    files("skep.catalog").joinpath("tool_calling.toml").read_text(encoding="utf-8")
)
KEYS = {
    *(
        "models",
        "of",
        "names",
        "llamacpp",
        "unreliable",
        "reason",
        "confidence",
        "source",
        "note",
        "vllm_flags",
    ),
    *("vllm", "vllm_reasoning", "vllm_reasoning_owner", "vllm_since", "vllm_template"),
    *("sglang", "sglang_reasoning", "sglang_since", "sglang_template"),
}


def test_every_model_of_the_catalogue_stands_in_exactly_one_table():
    listed = Counter(slug for entry in TABLES.values() for slug in entry.get("models", ()))
    assert listed.keys() == geometries().keys()
    assert set(listed.values()) == {1}


@pytest.mark.parametrize("title", TABLES)
def test_a_table_says_where_it_was_read_and_has_no_key_that_nobody_reads(title):
    entry = TABLES[title]
    assert entry.keys() <= KEYS
    assert entry["source"]
    assert entry["confidence"] in ("A", "B", "C")


@pytest.mark.parametrize("title", TABLES)
def test_a_table_is_of_a_model_or_of_checkpoints_that_differ_from_it(title):
    entry = TABLES[title]
    if "of" in entry:
        assert entry["names"]
        assert entry["of"] in TABLES
        assert entry["names"] == [pattern.lower() for pattern in entry["names"]]
    else:
        assert entry["llamacpp"] in ("yes", "likely", "no")
        assert entry.get("vllm") or entry.get("reason")


def test_every_known_checkpoint_is_known_by_the_name_that_an_engine_is_given():
    for checkpoint in all_checkpoints():
        for engine in checkpoint.engines:
            for quant in checkpoint.formats:
                assert find_tool_calling(engine, "served", checkpoint.reference(quant)) is not None


READ = [
    ("vllm", "qwen3-8b", "hermes", "qwen3"),
    ("vllm", "Qwen/Qwen3.6-27B-FP8", "qwen3_coder", "qwen3"),
    ("sglang", "Qwen/Qwen3-8B", "qwen25", "qwen3"),
    ("vllm", "google/gemma-4-31B-it", "gemma4", "gemma4"),
    ("vllm", "openai/gpt-oss-20b", "openai", "openai_gptoss"),
    ("sglang", "openai/gpt-oss-20b", "gpt-oss", "gpt-oss"),
    # what thinks and what does not are two checkpoints of one model
    ("vllm", "Qwen/Qwen3-4B-Instruct-2507", "hermes", None),
    ("vllm", "Qwen/Qwen3-30B-A3B-Thinking-2507-FP8", "hermes", "deepseek_r1"),
    ("vllm", "moonshotai/Kimi-K2-Thinking", "kimi_k2", "kimi_k2"),
    ("vllm", "mistralai/Ministral-3-8B-Instruct-2512", "mistral", None),
    ("vllm", "mistralai/Ministral-3-8B-Reasoning-2512", "mistral", "mistral"),
    # a parser that needs the maker's tokenizer
    ("vllm", "mistralai/Magistral-Small-2509", "mistral", "mistral"),
    ("vllm", "somebody/Magistral-Small-2509-AWQ", "mistral", None),
    # as they lie on a disk
    (
        "vllm",
        "/hub/models--Qwen--Qwen3-Coder-30B-A3B-Instruct/snapshots/0123abcd",
        "qwen3_coder",
        None,
    ),
    ("vllm", "/models/Qwen3-14B-AWQ/", "hermes", "qwen3"),
]


@pytest.mark.parametrize(("engine", "checkpoint", "tool", "reasoning"), READ)
def test_a_checkpoint_has_its_own_parsers(engine, checkpoint, tool, reasoning):
    tool_calling = find_tool_calling(engine, "served", checkpoint)
    assert (tool_calling.tool_parser, tool_calling.reasoning_parser) == (tool, reasoning)
    assert tool_calling.why_not is None


def test_a_folder_of_any_name_goes_by_the_name_that_it_is_served_under():
    assert find_tool_calling("vllm", "qwen3-8b", "/models/mine").tool_parser == "hermes"
    assert find_tool_calling("vllm", "mine", "/models/mine") is None


def test_of_what_is_not_known_nothing_is_said():
    assert find_tool_calling("vllm", "nobody/Thing-9B") is None
    assert find_tool_calling("ollama", "qwen3-8b") is None


WITHOUT = [
    ("vllm", "microsoft/phi-4", "its chat template knows no tools"),
    ("sglang", "google/gemma-3-27b-it", "no parser of sglang reads its calls"),
    ("vllm", "zai-org/GLM-4-9B-0414", "no parser reads its format"),
    ("llamacpp", "/models/SmolLM2-135M-Instruct-Q4_K_M.gguf", "its chat template knows no tools"),
    ("vllm", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "its chat template knows no tools"),
]


@pytest.mark.parametrize(("engine", "checkpoint", "why"), WITHOUT)
def test_a_model_whose_calls_nobody_reads_says_why(engine, checkpoint, why):
    tool_calling = find_tool_calling(engine, "served", checkpoint)
    assert (tool_calling.tool_parser, tool_calling.why_not) == (None, why)


def test_a_parser_that_a_version_does_not_have_is_not_given_to_it():
    tool_calling = find_tool_calling("vllm", "qwen3.6-27b")
    assert usable(tool_calling, "vllm", version="vllm 0.16.0") == usable(
        tool_calling, "vllm", version="vllm 0.9.2.post1"
    )
    old = usable(tool_calling, "vllm", version="vllm 0.16.0")
    assert (old.tool_parser, old.reasoning_parser) == (None, None)
    assert old.why_not == "vllm has its parser since 0.17.0"
    for version in ("vllm 0.17.0", "vllm 0.28.0rc1", "vllm 0.1.dev4+g1a2b", None):
        assert usable(tool_calling, "vllm", version=version) == tool_calling


def test_an_old_version_is_not_said_to_lack_a_parser_that_no_version_has():
    tool_calling = find_tool_calling("vllm", "served", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B")
    assert (
        usable(tool_calling, "vllm", version="vllm 0.6.6").why_not
        == "its chat template knows no tools"
    )


OWN_TEMPLATES = [
    ("llamacpp", "phi-4", True, None),
    (
        "vllm",
        "phi-4",
        True,
        "no parser of vllm is known for its calls, name yours with tool_parser",
    ),
    ("llamacpp", "qwen3-8b", False, "its chat template knows no tools"),
    ("vllm", "qwen3-8b", False, "its chat template knows no tools"),
    ("sglang", "gemma-3-27b", True, "no parser of sglang reads its calls"),
    ("llamacpp", "phi-4", None, "its chat template knows no tools"),
    ("vllm", "qwen3-8b", True, None),
]


@pytest.mark.parametrize(("engine", "model", "takes_tools", "why"), OWN_TEMPLATES)
def test_the_template_of_a_checkpoint_wins_over_that_of_its_model(engine, model, takes_tools, why):
    calling = with_template(find_tool_calling(engine, model), engine, takes_tools=takes_tools)
    assert calling.why_not == why
    assert calling.tool_parser is None or why is None


def test_a_template_without_tools_is_no_news_of_a_model_that_needs_another_one():
    tool_calling = find_tool_calling("vllm", "gemma-3-27b")
    assert with_template(tool_calling, "vllm", takes_tools=False) == tool_calling


def test_a_parser_whose_template_is_missing_is_not_set():
    """Without the template the model never hears of the tools, and a path that does not exist ends
    the engine.
    """
    tool_calling = find_tool_calling("vllm", "gemma-3-27b")
    bare = usable(tool_calling, "vllm")
    assert bare.tool_parser is None
    assert "tool_chat_template_gemma3_pythonic.jinja" in bare.why_not
    assert usable(tool_calling, "vllm", has_template=True).tool_parser == "pythonic"


NAMES = [
    ("Qwen/Qwen3-8B-GGUF:Q4_K_M", "Qwen/Qwen3-8B-GGUF"),
    ("/hub/models--a--B/snapshots/c", "a/B"),
    ("/hub/models--a--B/snapshots/c/B-Q4_K_M.gguf", "B"),
    ("/m/gemma-4-31B-it-UD-Q4_K_XL.gguf", "gemma-4-31B-it"),
    ("/m/GLM-4.5-Air-IQ4_XS-00001-of-00002.gguf", "GLM-4.5-Air"),
    ("./mine/", "mine"),
]


@pytest.mark.parametrize(("source", "name"), NAMES)
def test_what_is_loaded_has_a_name(source, name):
    assert hub_name(source) == name


def test_releases_are_compared_by_number():
    assert (
        release_of("sglang 0.5.10")
        > release_of("sglang 0.5.9")
        > release_of("0.5.3.post1")
        > release_of("0.5.3")
    )
    assert release_of("vllm nightly") is None
