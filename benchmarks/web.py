"""How soon the dashboard's pages are on the screen, with a million samples and a million requests
in the store.

    .venv/bin/python benchmarks/web.py [--store FILE] [--only history]

A real `skep web`, a real Chromium on the same machine. Goals on loopback: first paint under 300
ms, first chart under 1 s. For each page a server of its own is started, with nothing kept from
before: its very first load is told apart. Ten more follow, each in a browser context with an empty
cache. `first paint` is the browser's own first-contentful-paint; `chart` is the first frame after
one in which a chart had a size and its data; `document` is the page alone, fetched without a
browser, until its last byte. `--store FILE` is one that `million.py --keep FILE` left, and is
changed: runs are added."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path

from million import build, build_gateway
from playwright.sync_api import Browser, sync_playwright

from skep.monitor.records import DAY_S, HOUR_S
from skep.monitor.store import SeriesStore
from skep.paths import user_paths
from skep.store.database import Store, open_store
from skep.store.records import Request

PAINT_GOAL_MS = 300
CHART_GOAL_MS = 1000
ROUNDS = 10
RUNS = 60
FINE = "target=fine"
HOURLY = "target=box-1"
PAGES = {
    "two letters, no page": "/healthz",  # what the browser alone takes on this machine
    "now": "/",
    "history": "/history",
    **{
        f"history {window}": f"/history?{HOURLY}&window={window}"
        for window in ("7d", "30d", "1y", "all")
    },
    **{
        f"history {window}, every 10 min": f"/history?{FINE}&window={window}"
        for window in ("7d", "30d", "1y", "all")
    },
    "compare": "/compare?target=box-1&target=fine&window=30d",
    "compare 1y": "/compare?target=box-1&target=fine&window=1y",
    "runs": "/runs",
    "plan": "/plan?model=qwen3.6-27b&card=rtx-3090&count=2&agents=4",
}
WITHOUT_CHART = ("two letters, no page", "runs")
WAIT_MS = 5000  # for a chart, where there is one
VIEW = {"width": 1280, "height": 900}
# Looks in every frame; a chart counts in the frame after, when it has been painted. Lists have
# none.
WATCH = """
window.firstChart = null;
const look = () => {
    const seen = [...document.querySelectorAll("main svg[role=img], main img")].some((one) => {
        const place = one.getBoundingClientRect();
        return place.width > 0 && place.height > 0 && (one.tagName !== "IMG" || one.complete && one.naturalWidth > 0);
    });
    if (seen) requestAnimationFrame(() => { window.firstChart = performance.now(); });
    else requestAnimationFrame(look);
};
requestAnimationFrame(look);
"""
SETTLED = """(wait) => document.readyState === "complete"
    && performance.getEntriesByName("first-contentful-paint").length > 0
    && !document.querySelector("[data-fetch]") && (window.firstChart !== null
    || performance.now() - performance.getEntriesByType("navigation")[0].loadEventEnd > wait)"""
# A frame is reckoned before it is presented, a paint when it is: no chart was seen before the
# first paint.
TOLD = """() => { const paint = performance.getEntriesByName("first-contentful-paint")[0].startTime; return {
    paint_ms: paint,
    chart_ms: window.firstChart === null ? null : Math.max(paint, window.firstChart),
    bytes: [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
        .reduce((sum, entry) => sum + entry.transferSize, 0),
}; }"""


def add_runs(store: Store, end: float) -> None:
    """Sweeps of three models, a few of them a week.

    Rows as a load generator leaves them, and as made up.
    """
    rng = random.Random(12)
    for number in range(RUNS):
        at = end - (RUNS - number) * 2 * DAY_S
        config = {"concurrency": [1, 2, 4, 8], "tasks": None, "max_tokens": 64, "seed": number}
        run = store.begin_run(
            kind="sweep",
            created_at=at,
            model=f"model-{number % 3}",
            url="http://127.0.0.1:9/v1",
            fingerprint="made",
            config=config,
            host={},
            engine={"version": f"b{7000 + number // 20}"},
            simulated=True,
            skep_version="0",
        )
        rows = []
        for level in config["concurrency"]:
            for index in range(3 * level):
                began = index // level * 2.0
                length = rng.uniform(1.2, 1.6)
                times = {
                    "first_token_s": began + 0.1,
                    "last_token_s": began + length,
                    "status": 200,
                }
                rows.append(
                    Request(
                        level,
                        0,
                        index,
                        "fix",
                        began,
                        began + length,
                        began + 0.1,
                        output_tokens=64,
                        prompt_tokens=45,
                        finish_reason="length",
                        **times,
                    )
                )
        store.append_requests(run, rows)
        store.end_run(run, at + 60, "done")


@contextmanager
def served(env: dict[str, str]):
    """A `skep web` of its own, from its start to its address;
    the address and how long that took.
    """
    began = time.perf_counter()
    argv = [sys.executable, "-m", "skep", "web", "--port", "0"]
    with subprocess.Popen(
        argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as child:
        try:
            url = child.stdout.readline().strip()
            assert url, "`skep web` did not start"
            yield url, (time.perf_counter() - began) * 1000
        finally:
            child.terminate()


def load(browser: Browser, url: str, wait_ms: int = 0) -> dict[str, float | None]:
    """One look at a page by somebody who was never there."""
    context = browser.new_context(viewport=VIEW)
    try:
        page = context.new_page()
        page.add_init_script(WATCH)
        page.goto(url, wait_until="load")
        page.wait_for_function(SETTLED, arg=wait_ms)
        return page.evaluate(TOLD)
    finally:
        context.close()


def fetch_ms(url: str) -> float:
    began = time.perf_counter()
    with urllib.request.urlopen(url) as answer:
        answer.read()
    return (time.perf_counter() - began) * 1000


def measure(browser: Browser, env: dict[str, str], path: str, wait_ms: int) -> dict[str, object]:
    shutil.rmtree(env["XDG_CACHE_HOME"], ignore_errors=True)
    with served(env) as (base, start_ms):
        first = load(browser, base + path, wait_ms)
        loads = [
            load(browser, base + path, wait_ms) | {"document_ms": fetch_ms(base + path)}
            for _ in range(ROUNDS)
        ]
    return {"path": path, "start_ms": start_ms, "first": first, "loads": loads}


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


def row_of(name: str, found: dict) -> str:
    def of(key: str) -> list[float] | None:
        values = [one[key] for one in found["loads"]]
        return None if None in values else values

    def cell(values: list[float] | None) -> str:
        if values is None:
            return f"{'none':>13}"
        return f"{statistics.median(values):7.0f}{p95(values):6.0f}"

    def single(value: float | None) -> str:
        if value is None:
            return f"{'none':>7}"
        return f"{value:7.0f}"

    first = found["first"]
    paints = of("paint_ms")
    charts = of("chart_ms")
    met = [
        statistics.median(paints) < PAINT_GOAL_MS,
        charts is None or statistics.median(charts) < CHART_GOAL_MS,
    ]
    cold = [first["paint_ms"] < PAINT_GOAL_MS, (first["chart_ms"] or 0) < CHART_GOAL_MS]
    said = " ".join(f"{'met' if one else 'MISSED':>7}" for one in (*met, all(cold)))
    cells = f"{cell(paints)}{cell(charts)}{cell(of('document_ms'))}{statistics.median(of('bytes')) / 1000:8.0f}"
    return f"{name:26}{cells}  {single(first['paint_ms'])}{single(first['chart_ms'])}  {said}"


def fill(path: Path, end: float) -> None:
    print("building the store: some minutes", flush=True)
    with open_store(path) as store:
        build(store, end)
        build_gateway(store, end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--store", type=Path, help="one that `million.py --keep` left; default: one is built"
    )
    parser.add_argument(
        "--only", default="", help="pages whose name has this in it; nothing is stored then"
    )
    options = parser.parse_args()
    chromium = (
        shutil.which("chromium")
        or shutil.which("google-chrome")
        or parser.error("no Chromium on PATH")
    )
    end = time.time() // HOUR_S * HOUR_S
    with tempfile.TemporaryDirectory() as folder:
        homes = {
            f"XDG_{name}_HOME": f"{folder}/{name.lower()}"
            for name in ("CONFIG", "DATA", "STATE", "CACHE")
        }
        env = {key: value for key, value in os.environ.items() if key != "SKEP_API_KEY"} | homes
        place = user_paths(env).store
        place.parent.mkdir(parents=True)
        if options.store is None:
            fill(place, end)
        else:
            place.symlink_to(options.store.resolve())
        with open_store(place) as store:
            if not store.runs(1):
                add_runs(store, end)
            samples = SeriesStore(store).count_samples()
            size = store.size_bytes()
        cores = os.cpu_count()
        busy = os.getloadavg()[0]
        print(
            f"{samples:,} samples, {size / 2**20:,.0f} MiB, {RUNS} runs; {cores} cores, "
            f"load {busy:.1f} at the start"
        )
        print(
            f"{'ms, median and p95':26}{'first paint':>13}{'chart':>13}{'document':>13}{'kB':>8}"
            f"  {'very first':>14}  {'paint':>7} {'chart':>7} {'first':>7}"
        )
        found = {}
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            load(browser, "data:text/html,<main>warm</main>")
            for name, path in PAGES.items():
                if options.only in name:
                    found[name] = measure(
                        browser, env, path, 0 if name in WITHOUT_CHART else WAIT_MS
                    )
                    print(row_of(name, found[name]), flush=True)
            browser.close()
    print(f"goals: first paint under {PAINT_GOAL_MS} ms, first chart under {CHART_GOAL_MS} ms")
    if not options.only:
        results = Path(__file__).parent / "results"
        results.mkdir(exist_ok=True)
        document = {
            "samples": samples,
            "bytes": size,
            "cores": cores,
            "load": busy,
            "rounds": ROUNDS,
            "pages": found,
        }
        (results / "web.json").write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
