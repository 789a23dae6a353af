"""Keys and tokens of a running deployment: in whose command line, environment, output and files
they are.
"""

import contextlib
import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from hive_client import ask, eventually, family, status_of

from commands import environment, run_main
from skep.engines.base import KEY_FILE
from skep.paths import user_paths
from skep.testing.process import FakeEngine

GIVEN = {
    "SKEP_API_KEY": "sekret-of-the-gateway-0123456789",
    "SERVER_KEY": "sekret-of-the-upstream-0123456789",
    "HF_TOKEN": "hf_sekretofthehub0123456789",
    "HOOK": "http://127.0.0.1:9/sekret-of-the-webhook",
}
WRONG = "sekret-that-is-no-key-0123456789"
# A schema and an answer whose check takes as long as it may: in a process of its own.
SLOW_SCHEMA = {"type": "string", "pattern": "^(a+)+$"}
SLOW_TASK = {"id": "slow", "prompt": "check this", "max_tokens": 40, "schema": SLOW_SCHEMA}
SLOW_ANSWER = {"prompt": "check this", "answer": '"' + "a" * 40 + '!"'}
PAGES = [
    "/", "/plan", "/runs", "/tuning", "/swarm", "/history", "/compare", "/chat", "/login",
    "/api/swarm.json", "/api/runs.json", "/api/now.json",
]  # fmt: skip
SKEP_TOML = """
drain = "2s"
[gateway]
port = 0
workers = 2
[monitor]
webhook_env = "HOOK"
[[serve]]
model = "fake-model"
engine = "fake"
slots = 2
[[upstream]]
url = "{url}"
model = "other"
slots = 2
key_env = "SERVER_KEY"
"""
SHOWN = [
    ("ps",),
    ("ps", "--json"),
    ("top", "--once"),
    ("top", "--once", "--json"),
    ("doctor", "--json"),
    ("logs",),
    ("up", "--dry-run", "--json"),
    ("export", "service"),
    ("runs", "list", "--json"),
    ("runs", "export", "last"),
    ("swarm", "show", "--json"),
    ("swarm", "report", "-o", "swarm.html"),
    ("runs", "report", "last", "-o", "run.html"),
    ("store", "backup", "backup.sqlite3"),
]


class KeyedDeployment:
    """A real `skep up -d` in an environment with keys, one client key, and some work done with
    them.
    """

    def __init__(self, folder, upstream):
        self.folder = folder
        self.env = {**environment(folder), **GIVEN}
        self.paths = user_paths(self.env)
        (folder / "skep.toml").write_text(SKEP_TOML.format(url=upstream.url))
        (folder / "tasks.jsonl").write_text('{"id": "a", "prompt": "hello", "max_tokens": 2}\n')
        self.client_key = self.run("key", "add", "laptop").stdout.strip()
        # Processes whose environment the kernel shows.
        argv = [
            sys.executable,
            "-m",
            "skep",
            "up",
            "-d",
            "--json",
        ]
        up = subprocess.run(
            argv, env=self.env, cwd=folder, capture_output=True, text=True, timeout=100
        )
        self.ready = json.loads(up.stdout)
        self.engine_key = (self.paths.state / KEY_FILE).read_text().strip()

    def work(self):
        url = self.ready["url"]
        for key in (self.client_key, WRONG):
            status_of(url, key=key)
        ask(url, key=self.client_key, model="other")
        self.run("swarm", "run", "tasks.jsonl", "--model", "fake-model")
        load = ("--concurrency", "1", "--output-tokens", "16")
        self.run("bench", "sweep", "--model", "fake-model", *load, "--key-env", "SKEP_API_KEY")
        self.run(
            "monitor",
            "add",
            "box",
            "--url",
            url,
            "--model",
            "fake-model",
            "--key-env",
            "SKEP_API_KEY",
        )

    @property
    def secrets(self):
        return {**GIVEN, "client": self.client_key, "engine": self.engine_key, "wrong": WRONG}

    def run(self, *words):
        return run_main(words, self.env, self.folder)

    def names_in(self, text):
        return {name for name, secret in self.secrets.items() if secret in text}

    def processes(self, part="", below=None):
        """Command line and environment of each process with that in its command line.

        `below`: of another process than the deployment's own, and of those it started.
        """
        pages = []
        for pid in family(below or self.ready["pid"]):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ")
            if part in words:
                pages.append((words, Path(f"/proc/{pid}/environ").read_bytes().decode()))
        return pages


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    answers = tmp_path_factory.mktemp("answers") / "answers.jsonl"
    answers.write_text(json.dumps(SLOW_ANSWER))
    key = GIVEN["SERVER_KEY"]
    with FakeEngine(key=key, model="other", slots=2, answers=answers) as upstream:
        running = KeyedDeployment(tmp_path_factory.mktemp("secrets"), upstream)
        try:
            running.work()
            yield running
        finally:
            running.run("down", "--wait", "0s")


def test_no_command_line_holds_a_key(deployment):
    eventually(lambda: deployment.processes("skep monitor run"))
    processes = deployment.processes()
    assert len(processes) == 7  # supervisor, gateway, two relay workers, guard, engine, monitor
    assert [words for words, _ in processes if deployment.names_in(words)] == []


@pytest.mark.parametrize(
    ("part", "allowed"),
    [
        ("skep.gateway.main", set()),
        ("skep.gateway.worker", set()),
        ("skep.testing.fake_engine", {"engine", "HF_TOKEN"}),
        ("skep.supervisor.process_guard", {"engine", "HF_TOKEN"}),
    ],
)
def test_an_environment_holds_no_key_that_its_process_does_not_need(deployment, part, allowed):
    processes = deployment.processes(part)
    assert processes
    assert all(deployment.names_in(env) <= allowed for _, env in processes)


@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_nothing_that_is_shown_or_exported_holds_a_key(deployment, words):
    done = deployment.run(*words)
    assert done.stdout + done.stderr != ""
    assert deployment.names_in(done.stdout + done.stderr) == set()


@pytest.mark.parametrize("path", ["/", "/metrics", "/v1/models", "/health"])
def test_no_page_of_the_gateway_holds_a_key(deployment, path):
    headers = {"authorization": f"Bearer {deployment.client_key}"}
    request = urllib.request.Request(deployment.ready["url"] + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            text = answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            text = error.read().decode()
    assert deployment.names_in(text) == set()


class Dashboard:
    """A real `skep web`, as its owner starts it: with every key in its environment."""

    def __init__(self, deployment):
        self._output = (deployment.folder / "dashboard.log").open("wb")
        argv = [sys.executable, "-m", "skep", "web", "--port", "0"]
        self._process = subprocess.Popen(
            argv,
            env=deployment.env,
            cwd=deployment.folder,
            stdout=subprocess.PIPE,
            stderr=self._output,
            text=True,
        )
        self.pid = self._process.pid
        self.url = self._process.stdout.readline().strip()

    def ask(self, path, method="GET"):
        headers = {"authorization": f"Bearer {GIVEN['SKEP_API_KEY']}", "origin": self.url}
        request = urllib.request.Request(self.url + path, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.read().decode()

    def close(self):
        self._process.terminate()
        self._process.communicate(timeout=30)
        self._output.close()


@pytest.fixture(scope="module")
def dashboard(deployment):
    with contextlib.closing(Dashboard(deployment)) as running:
        yield running


@pytest.mark.parametrize("path", PAGES)
def test_no_page_of_the_dashboard_holds_a_key(deployment, dashboard, path):
    assert deployment.names_in(dashboard.ask(path)) == set()


def test_a_swarm_in_the_background_holds_its_own_key_alone_and_a_check_none(deployment, dashboard):
    """The dashboard resumes a run in another process, which checks the schema in a third one."""
    (deployment.folder / "slow.jsonl").write_text(json.dumps(SLOW_TASK))
    argv = [
        sys.executable,
        "-m",
        "skep",
        "swarm",
        "run",
        "slow.jsonl",
        "--model",
        "other",
        "--json",
    ]
    nowhere = subprocess.DEVNULL
    with subprocess.Popen(
        argv, env=deployment.env, cwd=deployment.folder, stdout=nowhere, stderr=nowhere
    ) as run:
        ((_, env),) = eventually(lambda: deployment.processes("skep.swarm.schemas", below=run.pid))
        deployment.run("swarm", "cancel", "last")
    assert deployment.names_in(env) == set()
    name = json.loads(dashboard.ask("/api/swarm.json"))["runs"][0]["id"]
    dashboard.ask(f"/swarm/{name}/resume", "POST")
    eventually(lambda: deployment.processes("skep.swarm.schemas", below=dashboard.pid))
    processes = deployment.processes(below=dashboard.pid)
    assert [words for words, _ in processes if deployment.names_in(words)] == []
    ((_, env),) = [process for process in processes if "swarm resume" in process[0]]
    assert deployment.names_in(env) == {"SKEP_API_KEY"}
    deployment.run("swarm", "cancel", "last")


def test_only_the_engines_key_is_in_a_file_and_only_for_its_user(deployment):
    names_by_file = {}
    for path in deployment.folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            names = deployment.names_in(path.read_bytes().decode(errors="replace"))
            if names:
                names_by_file[path] = names
    key_file = deployment.paths.state / KEY_FILE
    assert names_by_file == {key_file: {"engine"}}
    assert key_file.stat().st_mode & 0o077 == 0
