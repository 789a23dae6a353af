"""What an engine is told for others' sake: the address it binds,
and the key that it wants to see.
"""

import pytest
from msgspec.structs import replace

from skep.engines.base import Launch, engine_named, new_key, shows_key
from skep.host.processes import ENGINE_KEY, KEY_FILE_HERE, KEY_HERE

KEY = "a-key-of-this-hive"
PLAIN = Launch(
    "m-0", "fake", "m", None, slots=1, context_tokens=100, threads=1, port=9001, checkpoint="org/m"
)
ENGINES = ("embedded", "fake", "llamacpp", "ollama", "sglang", "simulated", "vllm")


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_is_told_its_address_and_its_key(engine):
    """The hive's key wins over one in the launch's variables, as the gateway sends it."""
    adapter = engine_named(engine)
    variable = {"llamacpp": "LLAMA_API_KEY", "vllm": "VLLM_API_KEY"}.get(engine, ENGINE_KEY)
    launch = replace(
        PLAIN, engine=engine, host="fd00::2", api_key=KEY, env=((variable, "another"),)
    )
    words = adapter.argv(launch)
    variables = adapter.environment(launch)
    if engine == "ollama":
        assert variables["OLLAMA_HOST"] == "[fd00::2]:9001"
    else:
        assert words[words.index("--host") + 1] == "fd00::2"
        assert variables[variable] == KEY


@pytest.mark.parametrize("engine", ENGINES)
def test_the_key_of_an_engine_is_no_word_of_its_command(engine):
    launch = replace(PLAIN, engine=engine, api_key=KEY)
    words = engine_named(engine).argv(launch)
    assert (KEY_HERE in words) == (engine == "sglang")  # no version of it is known here
    assert not any(KEY in word for word in words)
    assert KEY not in repr(launch)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_without_a_key_is_told_of_none(engine):
    adapter = engine_named(engine)
    keyless = replace(PLAIN, engine=engine)
    assert not any("KEY" in name for name in adapter.environment(keyless))
    assert not {"--api-key", KEY_HERE} & set(adapter.argv(keyless))


def test_sglang_gets_its_key_by_a_file_where_its_version_reads_one():
    """It has no variable for it, and `ps` shows its words to everybody."""
    adapter = engine_named("sglang")
    launch = replace(PLAIN, engine="sglang", api_key=KEY)
    words = adapter.arguments(launch, frozenset({"--config", "--api-key"}))
    assert words[words.index("--config") + 1] == KEY_FILE_HERE
    assert "--api-key" not in words
    for keyed in (replace(launch, extra=("--config", "mine.yaml")), launch):
        flags = frozenset({"--config", "--api-key"} if keyed.extra else {"--api-key"})
        words = adapter.arguments(keyed, flags)
        assert words[words.index("--api-key") + 1] == KEY_HERE


def test_a_key_is_no_flag_to_an_option_parser():
    assert all(new_key()[0].isalpha() for _ in range(200))
    assert len({new_key() for _ in range(200)}) == 200


def test_an_engine_with_a_key_is_told_to_give_no_web_page_leave():
    """By the command line or the environment; the user's own word wins."""
    launch = replace(PLAIN, api_key=KEY)
    words = engine_named("vllm").arguments(replace(launch, engine="vllm"))
    assert words[words.index("--allowed-origins") + 1] == "[]"
    with_origins = replace(
        launch, engine="vllm", extra=("--allowed-origins", '["https://mine.example"]')
    )
    assert engine_named("vllm").arguments(with_origins).count("--allowed-origins") == 1
    assert (
        engine_named("llamacpp").environment(replace(launch, engine="llamacpp"))[
            "LLAMA_ARG_CORS_ORIGINS"
        ]
        == "none"
    )
    mine = replace(
        launch, engine="llamacpp", env=(("LLAMA_ARG_CORS_ORIGINS", "https://mine.example"),)
    )
    assert (
        engine_named("llamacpp").environment(mine)["LLAMA_ARG_CORS_ORIGINS"]
        == "https://mine.example"
    )


@pytest.mark.parametrize("extra", [("--api-key", "another"), ("--api_key=another",)])
def test_a_key_among_the_extra_words_is_refused_where_the_hive_has_one(extra):
    launch = replace(PLAIN, engine="vllm", extra=extra)
    assert not list(engine_named("vllm").refusals(launch))
    refused = list(engine_named("vllm").refusals(replace(launch, api_key=KEY)))
    assert any("--api-key" in refusal for refusal, _ in refused)
    assert "another" not in str(refused)


def test_a_key_is_shown_whole_and_as_a_bearers():
    key = KEY.encode()
    wrong = (b"Bearer " + key[:-1], b"Basic " + key, key, b"Bearer \xff", b"", None)
    assert all(shows_key(KEY, scheme + key) for scheme in (b"Bearer ", b"bearer "))
    assert not any(shows_key(KEY, header) for header in wrong)
    assert all(shows_key("", header) for header in wrong), "where none is wanted"
