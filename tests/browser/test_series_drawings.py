"""What only a browser shows of charts over time: tips under mouse, finger and keys, zoom; pictures
without scripts.
"""

import re

import pytest
from playwright.sync_api import expect
from visits import PHONE

PAGE = "/history?target=box&window=30d"


@pytest.mark.parametrize("touch", [False, True])
def test_on_a_phone_a_point_says_its_value_under_mouse_and_finger(visit, site, touch):
    page = visit(site, viewport=PHONE, has_touch=touch).go(PAGE)
    chart = page.locator(".chart").first
    x, y, box = _inside(chart, 0.8)
    point = page.touchscreen.tap if touch else page.mouse.move
    point(x, y)
    tip = page.locator(".vg-tooltip.visible")
    expect(tip).to_contain_text(re.compile(r"\d\d:\d\d\n.*tok/s\nrolling median 7[34]"))
    tip_box = tip.bounding_box()
    assert tip_box["x"] >= 0
    assert tip_box["x"] + tip_box["width"] <= PHONE["width"]
    point(4, box["y"] - 40)
    expect(tip).to_have_count(0)


def test_a_chart_over_time_is_walked_by_keys_dragged_and_zoomed(visit, site):
    """Two of its days fill the axis after some turns of the wheel;
    a double click shows all again.
    """
    page = visit(site).go(PAGE)
    chart = page.locator(".chart").first
    x, y, _ = _inside(chart, 0.5)
    chart.focus()
    page.keyboard.press("End")
    first = page.locator(".vg-tooltip.visible").inner_text()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".vg-tooltip.visible")).not_to_have_text(first)
    outermost = chart.locator("text", has_text=re.compile(r"^\d+ [A-Z]")).first.text_content()
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -600)
    page.keyboard.up("Control")
    expect(chart.locator("svg")).not_to_contain_text(outermost)
    page.mouse.dblclick(x, y)
    expect(chart.locator("svg")).to_contain_text(outermost)


def test_without_scripts_the_servers_pictures_stay(chromium, site):
    context = chromium.new_context(viewport=PHONE, java_script_enabled=False)
    page = context.new_page()
    page.goto(site + PAGE)
    assert page.locator("svg.narrow").first.is_visible()
    assert page.locator("svg.wide").first.is_hidden()
    context.close()


def _inside(chart, share):
    """Once Vega has drawn it: a place within, that share of its width from the left,
    and its box.
    """
    expect(chart.locator("svg.marks")).to_be_visible(timeout=60_000)
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    return box["x"] + share * box["width"], box["y"] + box["height"] / 2, box


def test_without_a_hive_the_page_says_how_to_start_one(visit, site):
    page = visit(site).go("/")
    expect(page.locator("main")).to_contain_text("skep up -d")
    cards = page.locator(".target")
    expect(cards).to_have_count(2)
    cards.first.click()
    page.wait_for_url("**/history?target=box")
