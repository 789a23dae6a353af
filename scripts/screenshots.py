"""Takes the dashboard's pictures for the documentation: docs/images/web-*.png.

Needs Chromium on PATH. Everything shown is made up and says so: a month of made-up probes, two
simulated rigs that are really measured over HTTP, one of them under load while *Now* is looked at.
Takes about two minutes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / "browser"), str(ROOT / "tests")]

from sample_store import fill  # noqa: E402 - lies beside the tests that use it too
from visits import own_env, served  # noqa: E402

from skep.monitor.records import HOUR_S  # noqa: E402
from skep.monitor.store import SeriesStore  # noqa: E402
from skep.paths import user_paths  # noqa: E402
from skep.store.database import open_store  # noqa: E402

IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 150_000
MODEL = "qwen3.6-27b"
CARDS = "2x rtx-3090"
SETUPS = (
    ("--tp", "1", "--replicas", "2"),
    ("--tp", "2"),
)  # the last one is looked at while it works
SWEEP = (
    "--concurrency",
    "1,2,4,8",
    "--runs",
    "2",
    "--tasks",
    "8",
    "--max-tokens",
    "64",
    "--warm-up",
    "quick",
)
CLASSES = ("interactive", "normal", "normal", "batch", "batch")
AGENTS = 18
UNDER_LOAD_S = 25.0
UNWATCHED = (
    "[monitor]\nwith_up = false\n"  # the made-up targets have addresses at which others may answer
)


@dataclass(frozen=True, slots=True)
class Picture:
    """`height`: what is below is cut off.

    `at`: what stands at the top, where that is not the head of the page.
    """

    name: str
    path: str
    height: int
    width: int = 1200
    night: bool = False
    scale: float = 1.0
    at: str = ""


NOW = Picture("now", "/", 1000)
PICTURES = (
    Picture("history", "/history?target=box&window=30d", 1120, scale=0.8),
    Picture("history-night", "/history?target=box&window=30d", 1120, night=True, scale=0.8),
    Picture("compare", "/compare?target=box&target=cloud&window=30d", 900),
    Picture("runs", "/runs", 420),
    Picture("plan", f"/plan?model={MODEL}&card=rtx-3090&count=2&agents=8", 1120),
    Picture("tuning", "/tuning/last", 1120, scale=0.8),
    Picture(
        "phone",
        "/history?target=box&window=30d",
        740,
        width=390,
        scale=1.5,
        at=".banner.simulated",
    ),
)


def skep(env: dict[str, str], *words: str) -> str:
    argv = [sys.executable, "-m", "skep", *words]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        sys.exit(f"skep {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def rig(env: dict[str, str], setup: tuple[str, ...]) -> Iterator[str]:
    """A simulated one; its address."""
    told = skep(
        env, "up", MODEL, "--gpu", CARDS, "--simulate", "--port", "0", *setup, "-d", "--json"
    )
    try:
        yield json.loads(told)["url"]
    finally:
        skep(env, "down", "--wait", "0s")


def ask(url: str, number: int) -> None:
    words = f"Task {number}: write a parser for the format that the other agents agreed on. " * (
        1 + number % 7
    )
    body = {
        "model": MODEL,
        "max_tokens": 120 + number % 5 * 60,
        "messages": [{"role": "user", "content": words}],
    }
    headers = {
        "content-type": "application/json",
        "x-skep-priority": CLASSES[number % len(CLASSES)],
    }
    address = f"{url}/v1/chat/completions"
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)  # noqa: S310 - our own gateway
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310
        answer.read()


@contextmanager
def under_load(url: str) -> Iterator[None]:
    """Agents that ask one thing after the other."""
    ended = threading.Event()

    def work(agent: int) -> None:
        number = agent
        while not ended.is_set():
            try:
                ask(url, number)
            except (urllib.error.URLError, OSError):
                ended.wait(1.0)  # turned away for now
            number += AGENTS

    agents = [threading.Thread(target=work, args=(agent,), daemon=True) for agent in range(AGENTS)]
    for agent in agents:
        agent.start()
    try:
        yield
    finally:
        ended.set()


def take(browser: Browser, url: str, picture: Picture, *, wait_s: float = 0.0) -> list[str]:
    """What is wrong with it."""
    context = browser.new_context(
        viewport={"width": picture.width, "height": picture.height},
        color_scheme="dark" if picture.night else "light",
        device_scale_factor=picture.scale,
        is_mobile=picture.scale > 1,
    )
    page = context.new_page()
    page.goto(url + picture.path, wait_until="load")
    page.wait_for_selector("[data-fetch]", state="detached")
    page.wait_for_timeout(1000 * wait_s)
    if picture.at:
        page.locator(picture.at).first.evaluate("one => window.scrollTo(0, one.offsetTop - 16)")
    marked = re.search("simulated|predicted", page.inner_text("main"), re.IGNORECASE)
    place = IMAGES / f"web-{picture.name}.png"
    page.screenshot(path=place, animations="disabled")
    context.close()
    with_few_colours(place)
    size = place.stat().st_size
    print(f"{place.relative_to(ROOT)}: {size / 1000:.0f} kB", flush=True)
    if marked:
        faults = []
    else:
        faults = [f"{picture.path} does not say that its figures are made up"]
    return faults + (
        [f"{place.name} is larger than {MOST_BYTES} bytes"] if size > MOST_BYTES else []
    )


def with_few_colours(place: Path) -> None:
    """Half the size, where Pillow is installed."""
    try:
        image = import_module("PIL.Image")
    except ImportError:
        return
    with image.open(place) as whole:
        few = whole.convert("RGB").quantize(256)
    few.save(place, optimize=True)


def check(path: Path) -> None:
    """That nothing was probed in truth while the rigs ran."""
    with open_store(path, read_only=True) as store:
        series = SeriesStore(store)
        for target in series.targets():
            made = series.probes(target.name, time.time() - HOUR_S, time.time() + HOUR_S)
            assert all(probe.simulated for probe in made), target.name


def main() -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("error: no Chromium on PATH")
    IMAGES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="skep-shots-") as folder,
        sync_playwright() as playwright,
    ):
        env = own_env(Path(folder)) | {"XDG_CACHE_HOME": f"{folder}/cache"}
        os.chdir(folder)
        Path("skep.toml").write_text(UNWATCHED)
        paths = user_paths(env)
        paths.data.mkdir(parents=True)
        fill(paths.store, time.time())
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        faults: list[str] = []
        for setup in SETUPS:
            with rig(env, setup) as url:
                skep(env, "bench", "sweep", "--url", url, *SWEEP)
                if setup == SETUPS[-1]:
                    with served(env) as dashboard, under_load(url):
                        faults += take(browser, dashboard, NOW, wait_s=UNDER_LOAD_S)
        check(paths.store)
        with served(env) as dashboard:
            for picture in PICTURES:
                faults += take(browser, dashboard, picture)
        browser.close()
    if faults:
        sys.exit("\n".join(faults))


if __name__ == "__main__":
    main()
