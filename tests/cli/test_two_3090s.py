"""Pages for beginners, line by line.

Two RTX 3090s, their hub and their vLLM are fakes; so is a server elsewhere.
"""

import json
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from fake_programs import SMI, vllm_program

from fake_hub import FakeHub
from skep.testing.process import FakeEngine

DOCS = Path(__file__).parents[2] / "docs"
CHECKPOINT = "Lorbus/Qwen3.6-27B-int4-AutoRound"
QUICK = {"skep bench sweep": ["--tasks", "16", "--runs", "1", "--output-tokens", "4"]}


def typed(page):
    return re.findall(r"^    (skep .*)$", (DOCS / page).read_text(), re.MULTILINE)


def words_of(line):
    words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line)][1:]
    return words + next((extra for start, extra in QUICK.items() if line.startswith(start)), [])


@pytest.fixture
def machine(tmp_path, skep):
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (
        ("nvidia-smi", SMI),
        ("vllm", vllm_program("assert os.path.isdir(words[2]), words")),
    ):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    files = {"config.json": b"{}", "model.safetensors": b"w" * 100_000}
    with FakeHub(**{CHECKPOINT.replace("/", "__"): files}).serving() as hub:
        env = {
            "PATH": f"{programs}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "HF_ENDPOINT": hub.url,
        }
        yield lambda *words: skep(*words, check=0, **env)


@pytest.fixture(autouse=True)
def _any_port(tmp_path):
    (tmp_path / "skep.toml").write_text("[gateway]\nport = 0\n")


def test_the_six_lines_of_the_readme_can_be_typed(machine, tmp_path, env):
    readme = (DOCS.parent / "README.md").read_text()
    (block,) = re.findall(r"## On your own cards\s+```sh\n(.*?)```", readme, re.DOTALL)
    lines = [
        line.partition(" #")[0].rstrip() for line in block.splitlines() if line.startswith("skep ")
    ]
    assert [line.split()[1] for line in lines] == ["doctor", "plan", "up", "agent", "bench", "web"]
    for line in lines[:-1]:
        # The client itself is not installed here.
        flags = ["--print"] if line.startswith("skep agent ") else []
        machine(*words_of(line), *flags)
        if line.endswith("-d"):
            gateway = json.loads(machine("ps", "--json").stdout)[-1]["url"]
            body = re.search(r"-d '(.*)'", block)[1].encode()
            request = urllib.request.Request(
                f"{gateway}/v1/chat/completions", body, {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=30) as answer:
                assert json.load(answer)["choices"]
    web = subprocess.Popen(
        [sys.executable, "-m", "skep", *words_of(lines[-1]), "--port", "0"],
        env=env,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        url = next(
            match[0]
            for line in web.stdout
            if (match := re.search(r"http://127\.0\.0\.1:\d+", line))
        )
    finally:
        web.terminate()
        web.communicate(timeout=30)
    assert url


@pytest.mark.slow
def test_the_page_can_be_typed_from_its_first_line_to_its_last(machine, tmp_path):
    (tmp_path / "tasks.jsonl").write_text(
        '{"id": "t1", "prompt": "Say hello.", "max_tokens": 4}\n'
    )
    for folder in ("src", "docs"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.md").write_text("# Bees\nThey make wax.\n")
    lines = [line for line in typed("two-3090s.md") if "engine install" not in line]
    assert len(lines) > 8
    for line in lines:
        done = machine(*words_of(line))
        if line.startswith("skep plan"):
            assert "for 4 agents: TP=2" in done.stdout
        if line.endswith("-d"):
            rows = json.loads(machine("ps", "--json").stdout)
            assert [row["state"] for row in rows] == ["ready"] * 2
            assert "Claude Code: `skep agent claude`" in done.stderr


@pytest.mark.slow
def test_the_page_for_those_who_serve_already_can_be_typed_too(machine):
    lines = typed("already-serving.md")
    assert len(lines) == 4
    with FakeEngine(slots=16, model="qwen3:8b") as engine:
        for line in lines:
            done = machine(
                *words_of(re.sub(r"http://127\.0\.0\.1:(8000|11434)", engine.url, line))
            )
            assert "vllm serve" in done.stdout or "skep plan" not in line
            if line.endswith("-d"):
                machine("down")


@pytest.mark.slow
def test_the_page_for_those_without_a_gpu_can_be_typed_too(skep):
    """Nothing on it needs a card: the embedded model is real, the rig is simulated, the server
    elsewhere is a fake.
    """
    lines = typed("no-gpu.md")
    assert len(lines) == 9
    with FakeEngine(slots=16, model="qwen3:8b") as engine:
        for line in lines:
            elsewhere = "http://192.168" in line
            done = skep(
                *words_of(re.sub(r"http://192\.168\.1\.20:8000", engine.url, line)), check=0
            )
            if line.startswith("skep bench") and not elsewhere:
                assert "SIMULATED" in done.stderr
            if line.endswith("-d"):
                states = [row["state"] for row in json.loads(skep("ps", "--json", check=0).stdout)]
                assert states == ["ready"] * len(states)


def test_the_page_about_models_can_be_typed_and_shows_what_is_printed(skep):
    page = (DOCS / "which-model.md").read_text()
    printed = [skep(*words_of(line), check=0).stdout for line in typed("which-model.md")]
    assert len(printed) == 4
    assert printed[0].startswith(shown(page, "qwen3.6-27b on 2x rtx-3090"))
    assert shown(page, "RIG ") in printed[1]
    assert "Buy rtx-5090" in printed[2]
    sentences = "30 tok/s together", "first token after 59.2 s", "97,024 tokens of context each"
    text = " ".join(page.split())
    assert all(figure in printed[3] and figure in text for figure in sentences)


def shown(page, beginning):
    (block,) = re.findall(rf"```text\n({beginning}.*?)```", page, re.DOTALL)
    return block
