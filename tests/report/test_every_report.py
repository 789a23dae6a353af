"""What holds for every report: it stands alone, is the same each time, turns with the night and
takes no orders.
"""

import re

import pytest
from msgspec.structs import replace
from reading import HOSTILE, Outline, colours_of, spoiled
from test_mixed_page import GPT
from test_quality_page import SUMMARY

from sample_sessions import level_rows, summary_of
from sample_swarm import busy_story
from sample_tuning import sample_stages, sample_tuning
from skep.report import theme
from skep.report.agents_page import agents_page
from skep.report.comparison import comparison_page
from skep.report.mixed import mixed_page
from skep.report.quality import quality_page
from skep.report.swarm import swarm_page
from skep.report.sweep import sweep_page
from skep.report.tuning import tuning_page
from skep.tuner.records import ConfigFailure, KnobChange

KINDS = ("sweep", "agents", "comparison", "quality", "mixed", "swarm", "tuning")
SESSIONS = summary_of(
    level_rows(1, pause_s=1.0),
    level_rows(2, pause_s=1.0),
    level_rows(4, pause_s=1.0, hit=0.5),
)


@pytest.fixture(scope="module")
def page_of(run, complete, rows):
    """The page of a kind; `change` is done to every record of it."""

    def make(kind, change=lambda record: record, *, simulated=False):
        first, second = (
            change(replace(run, id=name, simulated=simulated)) for name in ("01", "02")
        )
        if kind == "sweep":
            return sweep_page(first, change(complete), change(rows))
        if kind == "agents":
            return agents_page(first, change(SESSIONS), change(rows))
        if kind == "comparison":
            return comparison_page([(first, change(complete)), (second, change(complete))])
        if kind == "quality":
            return quality_page(first, change(SUMMARY))
        if kind == "mixed":
            return mixed_page(first, change(GPT))
        if kind == "swarm":
            story = change(busy_story(simulated=simulated))
            return swarm_page(story)
        tuning = sample_tuning(simulated=simulated)
        stages = sample_stages()
        if change is spoiled:
            tuning = replace(tuning, **dict.fromkeys(("model", "rig", "engine", "id"), HOSTILE))
            odd = {"failure": ConfigFailure("no-start", HOSTILE, HOSTILE, HOSTILE), "why": HOSTILE}
            stages[3] = replace(stages[3], **odd, changes=(KnobChange(HOSTILE, None, HOSTILE),))
        return tuning_page(tuning, stages)

    return make


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_is_one_closed_small_file_and_the_same_each_time(page_of, kind):
    """No clock, counter or chance has a part in it, and nothing is loaded from elsewhere."""
    page = page_of(kind)
    outline = Outline(page)
    assert page.startswith("<!doctype html>")
    assert {"svg", "table"} <= set(outline.tags)
    assert not {"script", "img", "iframe", "object", "use", "image"} & set(outline.tags)
    targets = [
        value for name, value in outline.attributes if name in {"src", "href", "xlink:href"}
    ]
    assert all(value == "data:," or value.startswith("#") for value in targets)
    assert not re.search(r"url\(|@import|@font-face", page)
    assert len(page.encode()) < 150_000
    assert page_of(kind) == page


@pytest.mark.parametrize("kind", KINDS)
def test_every_colour_has_its_night_colour(page_of, kind):
    """A colour that the night rules do not know would stay dark on dark."""
    page = page_of(kind)
    assert colours_of(page)
    assert colours_of(page) <= set(theme.NIGHT)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_from_outside_becomes_markup(page_of, kind):
    """Names, URLs, errors, reasons and facts are text, whatever they hold."""
    page = page_of(kind, spoiled)
    outline = Outline(page)
    assert not {"script", "img"} & set(outline.tags)
    assert not [name for name, _ in outline.attributes if name.startswith("on")]
    assert outline.tags.count("style") == 1
    assert "<script>alert(1)</script>" in outline.text
    assert "\x00" not in page


@pytest.mark.parametrize("kind", KINDS)
def test_a_simulated_run_says_so(page_of, kind):
    """A prediction is never mistaken for a measurement."""
    banner = 'class="banner simulated"'
    assert banner in page_of(kind, simulated=True)
    assert banner not in page_of(kind)
