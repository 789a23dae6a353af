"""A real `skep web` over a month of made-up probes, and a real Chromium in front of it."""

import json
import shutil
import subprocess
import sys
import time

import pytest

from skep.paths import user_paths

pytest.importorskip("playwright", reason="`make test-web` installs it")

from playwright.sync_api import sync_playwright
from sample_store import fill
from visits import DESK, Visit, own_env, served


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/browser/" in str(item.path):
            item.add_marker(pytest.mark.browser)


@pytest.fixture(scope="session")
def chromium():
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on PATH")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """Folders with a month of probes and two runs in them."""
    folder = tmp_path_factory.mktemp("home")
    env = own_env(folder)
    paths = user_paths(env)
    paths.data.mkdir(parents=True)
    fill(paths.store, time.time())
    return env


@pytest.fixture(scope="session")
def site(home):
    with served(home) as url:
        yield url


@pytest.fixture
def visit(chromium):
    """`visit(url)` opens a fresh context; with the test's end, nothing may have gone wrong on its
    pages.
    """
    opened = []

    def open_one(url, *, viewport=DESK, **options):
        context = chromium.new_context(viewport=viewport, **options)
        visit = Visit(context.new_page(), url)
        opened.append((context, visit))
        return visit

    yield open_one
    faults = [fault for _, visited in opened for fault in visited.faults]
    for context, _ in opened:
        context.close()
    assert not faults, "\n".join(faults)


@pytest.fixture
def hive(tmp_path):
    """A real `skep up` in front of a fake engine, with folders of its own; its environment and its
    address.
    """
    env = own_env(tmp_path)
    (tmp_path / "skep.toml").write_text(
        '[gateway]\nport = 0\n[[serve]]\nmodel = "fake-model"\nengine = "fake"\n'
    )

    def run(*words):
        argv = [sys.executable, "-m", "skep", *words]
        return subprocess.run(
            argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
        )

    yield env, json.loads(run("up", "-d", "--json").stdout)["url"]
    run("down", "--wait", "0s")
