"""What the browser suite's fixtures and tests share: sizes of screens, a served dashboard, a
watched page.
"""

import os
import subprocess
import sys
from contextlib import contextmanager

PHONE = {"width": 360, "height": 740}
# What a reader cannot see whole: a page wider than the window, words beyond their picture. Tables
# roll within a frame.
CUT_OFF = """() => [...document.querySelectorAll("main svg, main, header")].flatMap((frame) => {
    if (!frame.checkVisibility()) return [];
    const drawn = frame.tagName === "svg";
    const edge = drawn ? frame.getBoundingClientRect()
        : {left: 0, right: innerWidth, bottom: Infinity};
    return [...frame.querySelectorAll(drawn ? "text" : "*")].filter((one) => {
        if (!one.checkVisibility()) return false;
        if (!drawn && one.closest("svg, .scroll, .roll, .unseen, .skip")) return false;
        const box = one.getBoundingClientRect();
        return box.width && (box.left < edge.left - 2 || box.right > edge.right + 2
            || box.bottom > edge.bottom + 2);
    }).map((one) => one.outerHTML.slice(0, 200)); })"""
WIDER = """() => [...document.querySelectorAll(".scroll")]
    .filter((one) => one.scrollWidth > one.clientWidth + 1)
    .map((one) => one.getAttribute("aria-label"))"""
DESK = {"width": 1280, "height": 900}


def own_env(folder):
    folders = {
        f"XDG_{name}_HOME": str(folder / name.lower())
        for name in ("CONFIG", "DATA", "STATE", "CACHE")
    }
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key not in ("XDG_RUNTIME_DIR", "SKEP_API_KEY")
    }
    return {**inherited, **folders, "PYTHONUNBUFFERED": "1"}


@contextmanager
def served(env, *options):
    """A `skep web` of its own; its address."""
    argv = [sys.executable, "-m", "skep", "web", "--port", "0", *options]
    with subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            first_line = child.stdout.readline()
            assert first_line, child.stderr.read()
            yield first_line.strip()
        finally:
            child.terminate()
            _, messages = child.communicate(timeout=20)
        assert child.returncode == 0, messages
        assert "Traceback" not in messages, messages


class Visit:
    """A page, and everything that went wrong on it."""

    def __init__(self, page, url):
        self.page = page
        self.url = url
        self.faults = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        page.on("requestfailed", self._failed)
        page.on("request", self._asked)
        page.on("response", self._answered)

    def go(self, path):
        self.page.goto(self.url + path, wait_until="load")
        return self.page

    def _console(self, message):
        if message.type in ("error", "warning"):
            self.faults.append(f"console: {message.text}")

    def _failed(self, request):
        if request.failure != "net::ERR_ABORTED":  # cut when the page is left
            self.faults.append(f"failed: {request.url} {request.failure}")

    def _asked(self, request):
        if not request.url.startswith((self.url, "data:", "about:")):
            self.faults.append(f"another origin: {request.url}")

    def _answered(self, answer):
        if answer.status >= 400:
            self.faults.append(f"HTTP {answer.status}: {answer.url}")
