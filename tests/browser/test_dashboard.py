"""The dashboard as people meet it: in a real Chromium, over a real `skep web` and a real store."""

import json
import re
import time
import urllib.request

import pytest
from playwright.sync_api import expect
from visits import CUT_OFF, PHONE, WIDER, served

from skep.paths import user_paths
from skep.store.database import open_store
from skep.store.records import Request

PAGES = {
    "/": "Now",
    "/chat": "Chat",
    "/history": "History",
    "/history?target=box&window=30d": "History of box",
    "/history?target=cloud&window=7d": "History of cloud",
    "/compare?target=box&target=cloud": "Compare box and cloud",
    "/runs": "Runs",
    "/plan?model=qwen3.6-27b&count=2&card=rtx-3090&agents=4": "Plan",
    "/sessions": "Sessions",
    "/swarm": "Swarm",
    "/swarm/last": "reviews.jsonl",
    "/tuning": "Tuning",
    "/tuning/last": "qwen3.6-27b (simulated)",
}
UNLABELLED = """() => [...document.querySelectorAll("input:not([type=hidden]), select, textarea")]
    .filter((field) => !(field.labels && field.labels.length) && !field.getAttribute("aria-label"))
    .map((field) => field.outerHTML)"""
UNNAMED = """() => [...document.querySelectorAll("img:not([alt]), svg[role=img]")]
    .filter((one) => one.tagName === "IMG"
        || !(one.querySelector("title") || one.getAttribute("aria-label")))
    .map((one) => one.outerHTML.slice(0, 200))"""
# What a reader meets with Tab: controls that have a size, are not disabled and not inside
# something folded.
REACHABLE = """() => [...document.querySelectorAll(
        "a[href], button, input, select, textarea, summary, [tabindex='0']")]
    .filter((one) => one.type !== "hidden" && !one.disabled
        && one.checkVisibility({visibilityProperty: true}))"""
NUMBERED = f"({REACHABLE})().forEach((one, index) => {{ one.dataset.tabTest = index; }})"
FOCUSED = "document.activeElement.dataset.tabTest"
OUTLINED = """() => { const style = getComputedStyle(document.activeElement);
    return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0
        || style.boxShadow !== "none"; }"""
# Of every text outside of pictures: its colour, the first ground behind it that is not clear,
# whether it is large.
WORDS = """() => { const found = {};
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const clear = (colour) => colour === "transparent" || /, 0\\)$/.test(colour);
    while (walk.nextNode()) { const one = walk.currentNode.parentElement;
        if (!walk.currentNode.data.trim() || !one.checkVisibility()) continue;
        if (one.closest("svg, script, noscript, :disabled")) continue;
        let behind = one;
        while (behind.parentElement && clear(getComputedStyle(behind).backgroundColor))
            behind = behind.parentElement;
        const style = getComputedStyle(one);
        const met = [style.color, getComputedStyle(behind).backgroundColor,
            parseFloat(style.fontSize) >= 24];
        found[met.join(" on ")] = [...met, walk.currentNode.data.trim().slice(0, 60)]; }
    return Object.values(found); }"""
COLOURS = """() => { const style = getComputedStyle(document.body);
    return [style.color, style.backgroundColor]; }"""


@pytest.mark.parametrize("path", PAGES)
def test_every_page_shows_itself_without_a_fault(visit, site, path):
    page = visit(site).go(path)
    assert page.inner_text("h1") == PAGES[path]
    assert page.title()
    assert page.evaluate(UNLABELLED) == []
    assert page.evaluate(UNNAMED) == []


@pytest.mark.parametrize(
    ("width", "scheme"), [(1400, "light"), (1000, "dark"), (400, "dark"), (360, "light")]
)
@pytest.mark.parametrize("path", PAGES)
def test_nothing_of_a_page_is_cut_off_and_the_night_is_dark(visit, site, path, width, scheme):
    page = visit(site, viewport={"width": width, "height": 900}, color_scheme=scheme).go(path)
    expect(page.locator("[data-fetch]")).to_have_count(0, timeout=30_000)
    if page.locator(".chart").count():
        expect(page.locator(".chart svg.marks").first).to_be_visible(timeout=60_000)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate(CUT_OFF) == []
    assert width < 1000 or page.evaluate(WIDER) == []
    ink, ground = (luminance(colour) for colour in page.evaluate(COLOURS))
    light, dark = sorted((ink, ground), reverse=True)
    assert (light + 0.05) / (dark + 0.05) > 7
    assert (ground < 0.05) is (scheme == "dark")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_stands_out_from_its_ground(visit, site, scheme):
    """4.5 to 1 at least, and 3 to 1 where it is large, as WCAG has it."""
    page_visit = visit(site, color_scheme=scheme)
    faint = set()
    for path in PAGES:
        for ink, ground, large, words in page_visit.go(path).evaluate(WORDS):
            light, dark = sorted((luminance(ink), luminance(ground)), reverse=True)
            if (light + 0.05) / (dark + 0.05) < (3 if large else 4.5):
                faint.add(f"{path}: {ink} on {ground}: {words}")
    assert faint == set()


def luminance(colour):
    """Of `rgb(r, g, b)`, as WCAG has it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [
        part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_keys_go_to_pages_and_tab_reaches_the_content(visit, site):
    page = visit(site).go("/")
    page.keyboard.press("3")
    page.wait_for_url("**/history")
    page.keyboard.press("g")
    page.keyboard.press("r")
    page.wait_for_url("**/runs")
    page.keyboard.press("?")
    assert page.locator("dialog#keys").is_visible()
    page.keyboard.press("Escape")
    page.goto(f"{site}/history?target=box")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.innerText") == "Skip to content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert page.evaluate("document.querySelector('main').contains(document.activeElement)")


@pytest.mark.parametrize(
    "path", ["/history?target=box&window=7d", "/runs", "/plan?model=qwen3.6-27b"]
)
def test_tab_reaches_every_control_and_shows_where_it_is(visit, site, path):
    page = visit(site).go(path)
    expect(page.locator(".chart:not([data-drawn]), [data-fetch]")).to_have_count(0, timeout=60_000)
    page.evaluate(NUMBERED)
    expected = {str(index) for index in range(page.evaluate(f"({REACHABLE})().length"))}
    reached = set()
    for _ in range(len(expected) + 5):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(FOCUSED))
        assert page.evaluate(OUTLINED), page.evaluate(
            "document.activeElement.outerHTML.slice(0, 200)"
        )
        if reached >= expected:
            break
    assert expected <= reached


def test_a_stored_run_has_its_page_and_its_place_among_the_best(visit, site, home):
    run = store_run(user_paths(home).store)
    page_visit = visit(site)
    page = page_visit.go("/runs")
    page.locator(f"a[href='/runs/{run}']").first.click()
    page.wait_for_url(f"**/runs/{run}")
    expect(page.locator(".chart svg.marks").first).to_be_visible(timeout=60_000)
    assert "simulated" in page.inner_text("main").lower()
    expect(page_visit.go("/runs?sort=best").locator("main")).to_contain_text("made-up-model")


def store_run(path):
    """Three tasks alone, then four at once; marked as simulated."""
    with open_store(path) as store:
        run = store.begin_run(
            kind="sweep",
            created_at=time.time(),
            model="made-up-model",
            url="http://127.0.0.1:9/v1",
            fingerprint="f",
            config={"concurrency": [1, 4]},
            host={},
            engine={},
            simulated=True,
            skep_version="0",
        )
        rows = [
            Request(
                level,
                repeat,
                index,
                "fix",
                float(index // level),
                index // level + 0.9,
                prompt_tokens=40,
                first_token_s=index // level + 0.1,
                last_token_s=index // level + 0.9,
                output_tokens=50,
                status=200,
            )
            for level in (1, 4)
            for repeat in range(3)
            for index in range(3 * level)
        ]
        store.append_requests(run, rows)
        store.end_run(run, time.time(), "done")
    return run


def test_a_page_is_its_address(visit, site):
    """What was picked is in the URL, and the URL alone brings it back."""
    page = visit(site).go("/history?target=box")
    page.get_by_role("link", name="30 days").click()
    page.wait_for_url("**window=30d**")
    again = visit(site).go(page.url.removeprefix(site))
    assert again.inner_text("main table") == page.inner_text("main table")


def test_a_note_that_is_written_down_stands_on_the_axis(visit, site):
    page = visit(site).go("/history?target=box&window=7d")
    page.get_by_label(re.compile("note", re.IGNORECASE)).first.fill("fans cleaned")
    page.get_by_role("button", name="Add").click()
    page.wait_for_load_state()
    page.goto(f"{site}/history?target=box&window=7d")
    assert "fans cleaned" in page.inner_text("main")


def test_who_comes_from_elsewhere_needs_a_key(visit, home):
    key = "a-key-of-some-length-0123456789"
    with served({**home, "SKEP_API_KEY": key}, "--host", "0.0.0.0") as everywhere:
        url = everywhere.replace("0.0.0.0", "127.0.0.1")
        page = visit(url).go("/login")
        page.locator("input[type=password]").fill(key)
        page.get_by_role("button").last.click()
        page.wait_for_url(f"{url}/")
        assert page.inner_text("h1") == "Now"
        page.goto(f"{url}/history?target=box")
        assert page.inner_text("h1") == "History of box"


def test_a_gateways_address_tells_what_it_serves_and_fits_a_phone(visit, hive):
    page = visit(hive[1], viewport=PHONE).go("/")
    assert page.inner_text("h1") == "skep"
    assert "fake-model" in page.inner_text("table")
    assert f"curl {hive[1]}/v1/chat/completions" in page.inner_text("pre >> nth=0")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate(
        "[...document.querySelectorAll('pre')].every((one) => one.scrollWidth <= one.clientWidth)"
    )


def test_a_swarm_run_is_listed_and_tells_what_each_attempt_was(visit, site):
    page = visit(site).go("/swarm")
    page.locator("main tbody a").first.click()
    page.wait_for_url("**/swarm/2*")
    expect(page.locator(".chart svg.marks").first).to_be_visible(timeout=60_000)
    text = page.inner_text("main")
    assert "20 of 25 tasks" in text
    assert "Resume: 4 left" in text


def test_figures_move_while_requests_come(visit, hive):
    """A real hive in front of a fake engine: the page is opened once and not loaded again."""
    env, door = hive
    with served(env) as url:
        page = visit(url).go("/")
        expect(page.locator("main")).to_contain_text("fake-model")
        body = json.dumps(
            {
                "model": "fake-model",
                "max_tokens": 40,
                "messages": [{"role": "user", "content": "hi"}],
            }
        )
        ask = urllib.request.Request(
            f"{door}/v1/chat/completions", body.encode(), {"content-type": "application/json"}
        )
        for _ in range(3):
            urllib.request.urlopen(ask).read()
        expect(page.locator("main")).to_contain_text(re.compile(r"Answered\s*3"), timeout=15_000)
