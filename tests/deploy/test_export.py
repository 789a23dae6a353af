"""A layout as text for others to start: what was published comes out again, and no value breaks
out of its quotes.
"""

import json
import re
import shlex
import shutil
import subprocess
from random import Random

import pytest
from msgspec.structs import replace

from skep.catalog.presets import Container, Draft, EngineOptions, Mount, Need, Preset
from skep.config.presets import shipped_presets
from skep.deploy.export import (
    FORMS,
    RecipePath,
    comment,
    recipe_of,
    shell_word,
    systemd_word,
    yaml_word,
)
from skep.errors import UserError

NASTY = [
    "a b",
    "it's",
    '"quoted"',
    "$HOME",
    "`id`",
    "100%",
    "%h",
    "back\\slash",
    "two\nlines",
    "tab\there",
    "ümlaut",
    "; rm -rf x",
    "#no",
    "${X}",
    "$(id)",
    "",
    "\\",
    "a=b",
    "{}",
    "*",
    "!",
    "~",
    "-x",
    "日本\u2028x",
]
PLAIN = Preset(
    name="mine",
    title="Mine",
    engine="vllm",
    model="qwen3-8b",
    checkpoint="Qwen/Qwen3-8B-AWQ",
    served_as="mine",
    hardware="2x rtx-3090",
    source="my own",
    slots=3,
    context_tokens=4096,
    replicas=2,
    engine_version="0.19.1",
)


def export(recipe, form):
    return FORMS[form](recipe)


def recipe(preset=PLAIN, **fields):
    return recipe_of(replace(preset, **fields), port=8400, engine_port=8500)


def shipped(name):
    preset = shipped_presets()[name]
    return recipe_of(preset, port=8400, engine_port=8500)


def commands(text, first):
    """The words of every command of a script that begins with this one, as a shell reads them."""
    lines = []
    words = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars="\n&;()|<>")
    words.whitespace = " \t\r"
    words.whitespace_split = True
    words.commenters = "#"
    line = []
    for word in words:
        if set(word) <= set("\n&;()|<>"):
            lines.append(line)
            line = []
        else:
            line.append(word)
    return [words for words in [*lines, line] if words and words[0] == first]


def options_of(words):
    """Flags with their values; one that stands alone has None."""
    options = {}
    for place, word in enumerate(words):
        if word.startswith("--"):
            if place + 1 < len(words):
                after = words[place + 1]
            else:
                after = "--"
            options[word] = None if after.startswith("--") else after
    return options


# What the write-up did


def published_run(depth, slots, share):
    """The author's `vllm serve`, as it is printed in the write-up, and the parser that lets agents
    call tools.
    """
    return {
        "--served-model-name": "qwen36-27b",
        "--quantization": "auto_round",
        "--dtype": "float16",
        "--max-model-len": "20000",
        "--gpu-memory-utilization": share,
        "--max-num-seqs": slots,
        "--max-num-batched-tokens": "2048",
        "--kv-cache-dtype": "fp8_e5m2",
        "--trust-remote-code": None,
        "--enable-auto-tool-choice": None,
        "--tool-call-parser": "qwen3_coder",
        "--reasoning-parser": "qwen3",
        "--enable-prefix-caching": None,
        "--enable-chunked-prefill": None,
        "--host": "0.0.0.0",
        "--port": "8000",
        "--speculative-config": {"method": "mtp", "num_speculative_tokens": depth},
    }


def test_a_container_is_told_the_parsers_of_the_model_whatever_its_folder_is_called():
    text = export(recipe(checkpoint="~/models/Qwen3-8B-AWQ"), "docker")
    for run in commands(text, "docker"):
        options = options_of(run)
        assert (options["--served-model-name"], options["--tool-call-parser"]) == (
            "mine",
            "hermes",
        )
        assert not any("Qwen3-8B-AWQ" in word for word in run[run.index("serve") + 1 :])


WRITE_UPS = [
    ("qwen3.6-27b-3090-mtp5", 5, "1", "0.97", ["0"]),
    ("qwen3.6-27b-2x3090-replicas", 3, "2", "0.92", ["0", "1"]),
]


@pytest.mark.parametrize(("name", "depth", "slots", "share", "cards"), WRITE_UPS)
def test_docker_runs_what_the_write_up_ran(name, depth, slots, share, cards):
    runs = commands(export(shipped(name), "docker"), "docker")
    assert len(runs) == len(cards)
    for run in runs:
        *steps, start = run[-1].split("\n")
        assert steps == [
            "set -e",
            "pip install xxhash pandas scipy -q",
            "python3 -m vllm._genesis.patches.apply_all",
            "python3 /patches/patch_tolist_cudagraph.py",
        ]
        words = shlex.split(start)
        assert words[:4] == ["exec", "vllm", "serve", "/model"]
        options = options_of(words)
        options["--speculative-config"] = json.loads(options["--speculative-config"])
        assert options == published_run(depth, slots, share)


@pytest.mark.parametrize(("name", "cards"), [(row[0], row[-1]) for row in WRITE_UPS])
def test_a_container_has_the_cards_ports_and_image_of_the_write_up(name, cards):
    runs = commands(export(shipped(name), "docker"), "docker")
    for place, (run, card) in enumerate(zip(runs, cards, strict=True)):
        assert run[:3] == ["docker", "run", "-d"]
        assert run[run.index("--gpus") + 1] == f'"device={card}"'
        assert run[run.index("-p") + 1].endswith(f"{8500 + place}:8000")
        assert {"--ipc=host", "--shm-size=16gb"} <= set(run)
        image, dash_c = run[-3:-1]
        assert image == "vllm/vllm-openai:nightly-07351e0883470724dd5a7e9730ed10e01fc99d08"
        assert (run[run.index("--entrypoint") + 1], dash_c) == ("/bin/bash", "-c")


@pytest.mark.parametrize("name", [row[0] for row in WRITE_UPS])
def test_a_container_has_the_mounts_and_variables_of_the_write_up(name):
    for run in commands(export(shipped(name), "docker"), "docker"):
        mounted = [run[at + 1].split(":", 1)[1] for at, word in enumerate(run) if word == "-v"]
        assert mounted == [
            "/model:ro",
            "/usr/local/lib/python3.12/dist-packages/vllm/_genesis:ro",
            "/patches/patch_tolist_cudagraph.py:ro",
        ]
        given = {run[at + 1] for at, word in enumerate(run) if word == "-e"}
        assert {
            "VLLM_WORKER_MULTIPROC_METHOD=spawn",
            "NCCL_P2P_DISABLE=1",
            "GENESIS_ENABLE_P82=1",
        } <= given
        assert "CUDA_VISIBLE_DEVICES" not in " ".join(run)  # inside, the one card is number 0


def test_the_gateway_of_two_replicas_is_told_their_slots():
    (words,) = commands(export(shipped("qwen3.6-27b-2x3090-replicas"), "docker"), "skep")
    assert words == shlex.split(
        "skep gateway --upstream http://127.0.0.1:8500 --upstream http://127.0.0.1:8501 "
        "--slots 2 --model qwen36-27b --port 8400"
    )


# Every preset in every form


@pytest.mark.parametrize("name", sorted(set(shipped_presets()) - {"gemma-4-31b-4x3090-ollama"}))
def test_every_shipped_preset_has_every_form(name):
    exported = shipped(name)
    for form in FORMS:
        text = export(exported, form)
        assert text.endswith("\n")
        assert name in text
        for launch in exported.launches:
            assert str(launch.port) in text


@pytest.mark.parametrize("form", ["shell", "docker"])
def test_scripts_are_scripts(form, tmp_path):
    for name in ("qwen3.6-27b-2x3090-replicas", "gpt-oss-20b-4090"):
        (tmp_path / name).write_text(export(shipped(name), form))
        subprocess.run(["bash", "-n", tmp_path / name], check=True)


@pytest.mark.parametrize("form", FORMS)
def test_a_text_says_that_its_endpoint_needs_skep_and_its_engines_do_not(form):
    text = " ".join(export(recipe(), form).replace("\n#", " ").split())
    assert "Needs skep for this address alone (`skep gateway`)" in text
    assert "without it" in text


@pytest.mark.parametrize("form", ["shell", "docker"])
def test_a_script_starts_no_engine_where_skep_is_missing(form, tmp_path):
    for name in ("docker", "env", "vllm"):
        (tmp_path / name).write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
        (tmp_path / name).chmod(0o755)
    bash = shutil.which("bash")
    done = subprocess.run(
        [bash, "-c", export(recipe(), form)],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert "no skep on PATH: `skep gateway` stands in front of the engines" in done.stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_accepts_its_units(tmp_path):
    text = export(
        recipe(env=(("X", "a % $b \"c\" 'd'"),), extra=("--flag", "100% $HOME")), "systemd"
    )
    parts = re.split(r"^# ~/\.config/systemd/user/(\S+)\n", text, flags=re.MULTILINE)
    units = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert list(units) == [
        "skep-mine-0.service",
        "skep-mine-1.service",
        "skep-mine-gateway.service",
    ]
    for name, unit in units.items():
        (tmp_path / name).write_text(unit)
    env = {
        "HOME": str(tmp_path),
        "PATH": "/usr/bin:/bin",
        "SYSTEMD_UNIT_PATH": f"{tmp_path}:",
        "XDG_RUNTIME_DIR": str(tmp_path),
    }
    command = ["systemd-analyze", "--user", "verify", *(str(tmp_path / name) for name in units)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


# What is said


@pytest.mark.parametrize("form", ["shell", "docker"])
def test_a_script_says_what_its_preset_needs(form):
    need = Need("patch", "patch", "the patch", "it is quick", "somewhere")
    text = export(recipe(needs=(need,), container=Container("image:tag")), form)
    assert "# Needs (patch): the patch: it is quick" in text


@pytest.mark.parametrize(
    ("engine", "checkpoint", "version", "image"),
    [
        ("sglang", "Qwen/Qwen3-8B", "0.5.3", "lmsysorg/sglang:v0.5.3"),
        ("llamacpp", "/srv/q.gguf", "b7000", "ghcr.io/ggml-org/llama.cpp:server-cuda-b7000"),
    ],
)
def test_each_engine_has_its_public_image(engine, checkpoint, version, image):
    exported = recipe(
        engine=engine,
        checkpoint=checkpoint,
        engine_version=version,
        replicas=1,
        hardware="rtx-3090",
    )
    (run, *_) = commands(export(exported, "docker"), "docker")
    assert image in run
    assert "0.0.0.0" in " ".join(run)  # loopback inside a container is nobody's
    assert any(word.startswith("127.0.0.1:8500:") for word in run)


def test_a_gguf_file_of_the_hub_is_named_as_llama_server_wants_it():
    exported = recipe(
        engine="llamacpp", checkpoint="a/b-GGUF:b-Q4_K_M.gguf", replicas=1, hardware="rtx-4090"
    )
    (run,) = commands(export(exported, "docker"), "docker")
    assert (run[run.index("--hf-repo") + 1], run[run.index("--hf-file") + 1]) == (
        "a/b-GGUF",
        "b-Q4_K_M.gguf",
    )


ARC = {"hardware": "arc-pro-b70", "replicas": 1}
MOUNTED = Container(
    "i:1", (Mount("$DATA/it's", "/in side", read_only=False),), before=("echo $HOME 'x'",)
)


@pytest.mark.parametrize(
    ("exported", "form", "sentence"),
    [
        (recipe(), "docker", ["vllm/vllm-openai:v0.19.1"]),
        (recipe(engine_version=None), "docker", ["vllm/vllm-openai:latest"]),
        (recipe(checkpoint="/srv/qwen"), "docker", ["/srv/qwen:/model:ro", "serve /model"]),
        (recipe(**ARC), "docker", ["is built for NVIDIA's cards"]),
        (recipe(**ARC), "shell", ["ZE_AFFINITY_MASK=0"]),
        (
            recipe(container=MOUNTED),
            "compose",
            ['target: "/in side"', "read_only: false", "echo $$HOME 'x'"],
        ),
        (
            recipe(env=(("HTTP_PROXY", "http://127.0.0.1:3128"),)),
            "docker",
            ["HTTP_PROXY=http://127.0.0.1:3128"],
        ),
    ],
)
def test_a_text_says_what_its_preset_asks_for(exported, form, sentence):
    """The image of a version, mounts, cards of another maker, and variables."""
    text = " ".join(export(exported, form).replace("\\\n", " ").split())
    assert [words for words in sentence if words not in text] == []
    assert "--gpus" not in text or exported.vendor == "nvidia"


def test_ports_must_leave_room_for_the_endpoint():
    with pytest.raises(UserError, match="does not fit"):
        recipe_of(PLAIN, port=8501, engine_port=8500)


@pytest.mark.parametrize(
    ("engine", "message"), [("embedded", "own embedded engine"), ("ollama", "runs in Ollama")]
)
def test_an_engine_that_needs_no_export_says_so(engine, message):
    with pytest.raises(UserError, match=message):
        recipe(engine=engine, hardware="cpu", replicas=1)


# Quoting


@pytest.mark.parametrize("text", NASTY)
def test_shells_systemd_and_compose_give_every_value_back(text):
    """A double-quoted YAML scalar with these escapes is a JSON string too."""
    assert shlex.split(f"x {shell_word(text)}") == ["x", text]
    assert unsystemd(systemd_word(text)) == text
    assert json.loads(yaml_word(text)).replace("$$", "$") == text


def test_random_values_survive_a_whole_script():
    rng = Random(6)
    letters = "ab '\"$`\\%{}()!#&;|<>*?~=\t\n"
    for _ in range(40):
        word, value = ("".join(rng.choices(letters, k=rng.randint(1, 12))) for _ in range(2))
        exported = recipe(
            extra=("--own", f"x{word}"),
            env=(("OWN", value),),
            title=word,
            replicas=1,
            hardware="rtx-3090",
        )
        script = export(exported, "shell")
        ran = subprocess_free_words(script)
        assert ran[ran.index("--own") + 1] == f"x{word}"
        assert f"OWN={value}" in ran


def subprocess_free_words(script):
    """Of the one engine's command: from `env` to the `&` behind it."""
    begin = script.index("\nenv ") + 1
    return shlex.split(script[begin : script.index(" &\npids", begin)])


def test_a_comment_never_ends_early():
    assert comment("one\nrm -rf x\r\ntwo\u2028three") == "# one\n# rm -rf x\n# two\n# three"
    text = export(recipe(title="x\nrm -rf y", source="a\nb"), "compose")
    assert not re.search(r"^rm", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("path", "shell", "systemd", "yaml"),
    [
        ("~/a b", "\"$HOME\"'/a b'", '"%h/a b"', '"${HOME}/a b"'),
        ("$G/x", '"$G"/x', "${G}/x", '"${G:?set its path in .env}/x"'),
        ("${G}/x", '"${G}"/x', "${G}/x", '"${G:?set its path in .env}/x"'),
        ("/a$(id)", "'/a$(id)'", '"/a$$(id)"', '"/a$$(id)"'),
    ],
)
def test_a_path_keeps_its_home_and_variables_and_nothing_else(path, shell, systemd, yaml):
    assert shell_word(RecipePath(path)) == shell
    assert systemd_word(RecipePath(path)) == systemd
    assert yaml_word(RecipePath(path)) == yaml


def test_a_draft_is_one_word_of_json():
    text = export(recipe(options=EngineOptions(draft=Draft("mtp", 3))), "compose")
    line = next(line for line in text.splitlines() if "num_speculative_tokens" in line)
    assert json.loads(json.loads(line.strip().removeprefix("- ")))["num_speculative_tokens"] == 3


def unsystemd(word):
    """As systemd reads one word of a command line."""
    if word.startswith('"'):
        word = word[1:-1]
    word = re.sub(r"\\(u[0-9a-f]{4}|.)", lambda match: _unescaped(match[1]), word)
    return word.replace("%%", "%").replace("$$", "$")


def _unescaped(code):
    return {"n": "\n", "t": "\t"}.get(code) or (chr(int(code[1:], 16)) if len(code) > 1 else code)


# What has to be known before it is started


@pytest.mark.parametrize("form", ["shell", "docker", "compose", "systemd"])
def test_notes_and_a_stand_in_are_told_in_comments(form):
    text = export(recipe(stand_in=True, notes=("warm it\nup first",)), form)
    notes = [line for line in text.splitlines() if line.startswith("# Note: ")]
    assert notes[0] == (
        "# Note: the source does not name its checkpoint: skep uses Qwen/Qwen3-8B-AWQ in its place"
    )
    assert notes[1].startswith("# Note: warm it")
    assert not any(line.startswith("up first") for line in text.splitlines())
    assert "# Note: " not in export(recipe(), form)
