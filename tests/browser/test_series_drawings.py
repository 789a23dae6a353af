"""What only a browser shows of pictures over time: values under mouse and finger, and a step that looks like one."""

import re

import pytest
from playwright.sync_api import expect
from visits import PHONE

PAGE = "/history?target=box&window=30d"


@pytest.mark.parametrize("touch", [False, True])
def test_on_a_phone_a_point_says_its_value_under_mouse_and_finger(visit, site, touch):
    """A finger that is lifted again leaves the value to be read; a tap elsewhere takes it away."""
    page = visit(site, viewport=PHONE, has_touch=touch).go(PAGE)
    chart = page.locator("svg.series.narrow").first
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    x, y = box["x"] + 0.8 * box["width"], box["y"] + box["height"] / 2
    point = page.touchscreen.tap if touch else page.mouse.move
    point(x, y)
    tip = page.locator(".chart-tip").first
    expect(tip).to_contain_text(re.compile(r"\d\d:\d\d.*tok/s.*rolling median 7[34]"))
    told = tip.bounding_box()
    assert told["x"] >= 0
    assert told["x"] + told["width"] <= PHONE["width"]
    point(4, box["y"] - 40)
    expect(tip).to_be_hidden()


def test_the_drawn_line_does_not_glide_through_a_step(visit, site):
    """The last value before the change and the first after it are far apart, and no line joins them."""
    page = visit(site).go(PAGE)
    line = page.locator("svg.series.wide path[stroke-width='2.4']").first.get_attribute("d")
    before, after = [re.split("[L,]", piece.removesuffix("Z")) for piece in line.split("M") if piece][-2:]
    assert float(after[1]) - float(before[-1]) > 40


def test_without_a_hive_the_page_says_how_to_start_one(visit, site):
    page = visit(site).go("/")
    expect(page.locator("main")).to_contain_text("skep up -d")
    cards = page.locator(".target")
    expect(cards).to_have_count(2)
    cards.first.click()
    page.wait_for_url("**/history?target=box")
