"""The landing view says in one sentence which target is faster, in public too; pages say how it
was measured.
"""

import pytest
import watched_store

NOW = watched_store.NOW
fill = watched_store.fill


def test_the_landing_view_says_which_target_is_faster(ask):
    html = ask("/")[1]
    (headline,) = ask.json("/api/now.json")["headlines"]
    assert headline["sentence"].startswith("box is ")
    assert "% faster than cloud (7-day medians 9" in headline["sentence"]
    assert f"<strong>{headline['sentence']}</strong>" in html
    assert headline["details"][0] == "hot, short answer: tok/s"


def test_the_public_page_says_which_target_is_faster_too(public):
    html = public("/")[1]
    assert "% faster than cloud" in html
    assert "10.9.8.7" not in html


@pytest.mark.parametrize(
    "path", ["/", "/history", "/history?target=box", "/compare?target=box&target=cloud"]
)
def test_the_foot_of_a_page_says_how_its_targets_are_probed(ask, public, path):
    for site in (ask, public):
        html = site(path)[1]
        assert "How these are probed" in html
        assert "a probe every 1 h, up to 6 min later; prompts of about 256 tokens" in html
        assert "the hot runs follow" in html


def test_without_targets_nothing_is_said_of_probing(bare):
    assert "How these are probed" not in bare("/history")[1]


def test_what_a_pause_costs_is_told_on_the_landing_view_and_in_a_targets_history(ask, public):
    starts = {start["target"]: start for start in ask.json("/api/now.json")["cold_starts"]}
    sentence = starts["cloud"]["sentence"]
    assert (
        "cloud after a pause (probed every 1 h): first token after 900 ms instead of 121 ms"
        in sentence
    )
    for site in (ask, public):
        assert sentence in site("/")[1]
        assert sentence in site("/history?target=cloud")[1]
