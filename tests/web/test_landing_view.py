"""The landing view says in one sentence which target is faster, in public too."""

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
