"""A tuning as people look at it: in a real Chromium, also on a phone, and while it goes on."""

import time

from msgspec.structs import replace
from playwright.sync_api import expect
from visits import CUT_OFF, PHONE, own_env, served

from sample_tuning import sample_stages, sample_tuning
from skep.paths import user_paths
from skep.store.database import open_store
from skep.tuner.store import TuningStore

ROLLS = """() => { const one = document.querySelector(".roll");
    return one.scrollWidth > one.clientWidth; }"""


def test_the_tuning_is_drawn_with_all_its_words_inside(visit, site):
    page = visit(site).go("/tuning/last")
    expect(page.locator(".chart svg.marks").first).to_be_visible(timeout=60_000)
    assert page.evaluate(CUT_OFF) == []
    text = page.inner_text("main")
    for part in (
        "From 25.1 to 190 tok/s",
        "SIMULATED",
        "Failed attempts",
        "nothing is left to try",
    ):
        assert part in text


def test_on_a_phone_the_picture_rolls_and_the_page_does_not(visit, site):
    page = visit(site, viewport=PHONE, color_scheme="dark").go("/tuning/last")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate(ROLLS)


def test_the_list_leads_to_each_tuning_and_keeps_loads_apart(visit, site):
    page = visit(site).go("/tuning")
    assert page.locator("main section").count() == 2
    page.locator("main section tbody a").first.click()
    page.wait_for_url("**/tuning/2*")
    assert page.inner_text("h1") == "qwen3.6-27b (simulated)"


def test_a_long_tuning_fits_a_phone_and_what_was_unfolded_stays_so_while_it_goes_on(
    visit, tmp_path
):
    env = own_env(tmp_path)
    paths = user_paths(env)
    paths.data.mkdir(parents=True)
    now = time.time()
    stages = sample_stages()
    many = [replace(stages[9], number=12 + place) for place in range(80)]
    with open_store(paths.store) as store, served(env) as url:
        tunings = TuningStore(store)
        name = tunings.begin(sample_tuning(created_at=now))
        session = tunings.begin_session(name, now)
        tunings.append(name, [*stages, *many[:60]], now)
        page = visit(url, viewport=PHONE, color_scheme="dark").go(f"/tuning/{name}")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert page.evaluate(CUT_OFF) == []
        page.locator("#left summary").click()
        assert page.locator("#left tbody tr").first.is_visible()
        tunings.append(name, many[60:], now)
        expect(page.locator("#left summary")).to_contain_text("87 not kept", timeout=15_000)
        assert page.locator("#left tbody tr").first.is_visible()
        assert page.evaluate("document.activeElement.parentElement.id") == "left"
        tunings.end_session(name, session, at=now, outcome="done")
        expect(page.locator("[data-refresh]")).to_have_count(0, timeout=15_000)
