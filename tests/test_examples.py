"""The examples as people run them, against a real gateway;
the last one against a whole `skep up`.
"""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from skep.testing.process import FakeEngine, GatewayProcess

EXAMPLES = Path(__file__).parent.parent / "examples"
CHILD = Path(__file__).parent / "examples_child.py"
NAMES = sorted(file.stem for file in EXAMPLES.glob("*.py"))
SOON_DOWN = [name for name in NAMES if name != "skep_swarm"]  # that one waits a while
README = (EXAMPLES / "README.md").read_text(encoding="utf-8")
ANSWERS = (
    {"prompt": "Which country is", "answer": '{"country": "Peru", "continent": "America"}'},
    {"prompt": "How content is", "answer": '{"mood": "good", "stars": 5}'},
)
LAST_LINES = {
    "asyncio_httpx": r"20 answers in [0-9.]+ s",
    "openai_sdk": r"batch completed: 5 of 5",
    "pydantic_ai_fanout": r"20 answers in [0-9.]+ s",
    "skep_swarm": r"10 answers, 10 of them in a form",
}


def child(words, env, cwd):
    pipes = {
        **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
        "text": True,
        "encoding": "utf-8",
    }
    return subprocess.Popen([sys.executable, *map(str, words)], env=env, cwd=cwd, **pipes)


def ended(process, timeout=100):
    with process:
        try:
            out, err = process.communicate(timeout=timeout)
        finally:
            process.kill()
    return process.returncode, out, err


def example(name, env, folder):
    return child(["-W", "error", EXAMPLES / f"{name}.py"], env, folder)


def what_they_say(folder, env):
    """Before a gateway with four slots of a fake engine, and where nobody listens."""
    answers = folder / "answers.jsonl"
    places = {"store": str(folder / "skep.sqlite3"), "files": str(folder / "files")}
    answers.write_text("\n".join(map(json.dumps, ANSWERS)))
    # Loads what they import while the others start.
    process = child(["-W", "error", CHILD, *NAMES], env, folder)
    with process, socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}"
        try:
            with (
                FakeEngine(slots=4, token_ms=1, answers=answers) as engine,
                GatewayProcess(folder / "log", batches=places) as gateway,
            ):
                gateway.serve(
                    [
                        {
                            "name": "r0",
                            "url": engine.url,
                            "model": "fake-model",
                            "slots": 4,
                            "confirms": "slots",
                        }
                    ]
                )
                requests = [(name, gateway.url) for name in NAMES] + [
                    (name, nobody) for name in SOON_DOWN
                ]
                lines = "".join(f"{json.dumps(request)}\n" for request in requests)
                answered = process.communicate(lines, timeout=100)[0].splitlines()
        finally:
            process.kill()
    outcomes = [json.loads(line) for line in answered]
    return dict(
        zip([(name, where != nobody) for name, where in requests], outcomes, strict=True)
    ), nobody


def test_each_is_in_the_page_and_short():
    assert set(re.findall(r"python examples/(\w+)\.py", README)) == set(NAMES) == set(LAST_LINES)
    assert all(len((EXAMPLES / f"{name}.py").read_text().splitlines()) <= 75 for name in NAMES)


def test_each_gets_its_answers_and_says_in_one_line_that_an_endpoint_is_down(tmp_path, env):
    """One test: what they import takes longer than what they do."""
    outcomes, nobody = what_they_say(tmp_path, env)
    for name in NAMES:
        code, out, err = outcomes[name, True]
        assert (code, "Traceback" in err) == (0, False), err
        assert re.fullmatch(LAST_LINES[name], out.splitlines()[-1]), out
    for name in SOON_DOWN:
        is_one_line(*outcomes[name, False], nobody)


@pytest.mark.slow
def test_the_swarm_gives_an_endpoint_up_after_its_deadline(tmp_path, env):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        is_one_line(*ended(example("skep_swarm", env | {"SKEP_URL": url}, tmp_path)), url)


def is_one_line(code, out, err, url):
    assert (code, out) == (1, "")
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("error: ")
    assert url in err.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(600)
def test_a_real_engine_keeps_to_the_form(tmp_path, env, skep):
    """The fake one says what it was told.

    The embedded model knows little; its answers are typed all the same.
    """
    name = "pydantic_ai_fanout"
    up = skep(
        "up", "-d", "--json", "--embedded", "--slots", 4, "--context", 512, "--port", 0, check=0
    )
    url = json.loads(up.stdout)["url"]
    code, out, err = ended(example(name, env | {"SKEP_URL": url}, tmp_path), timeout=500)
    assert code == 0, err
    assert re.fullmatch(LAST_LINES[name], out.splitlines()[-1]), out
