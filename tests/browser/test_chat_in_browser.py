"""The chat as people use it: in a real Chromium, in front of an engine that answers slowly enough
to be stopped.
"""

from playwright.sync_api import expect
from visits import PHONE, own_env, served

from skep.testing.process import FakeEngine


def test_answers_stream_in_with_their_speed_and_can_be_stopped(visit, tmp_path):
    with (
        FakeEngine(slots=1, token_ms=30) as engine,
        served(own_env(tmp_path) | {"SKEP_URL": engine.url}) as url,
    ):
        page = visit(url, viewport=PHONE).go("/chat")
        page.fill("#question", "Count to ten.")
        page.press("#question", "Enter")
        figures = page.locator(".turn.assistant .figures")
        expect(figures).to_contain_text("first token after", timeout=15_000)
        expect(figures).to_contain_text("tok/s")
        expect(page.locator(".turn.user")).to_have_text("Count to ten.")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.fill("#question", "Again.")
        page.press("#question", "Enter")
        expect(page.locator(".turn.assistant .said")).to_have_count(2, timeout=15_000)
        page.click("#stop")
        expect(page.locator(".turn.assistant .figures").last).to_contain_text("stopped")
        assert page.locator(".turn.failed").count() == 0
        page.click("#anew")
        expect(page.locator(".turn")).to_have_count(0)


def test_a_key_is_entered_where_the_gateway_wants_one(visit, tmp_path):
    key = "sk-of-the-owner"
    with FakeEngine(slots=1, key=key) as engine:
        env = own_env(tmp_path) | {"SKEP_URL": engine.url, "SKEP_API_KEY": key}
        with served(env) as url:
            page = visit(url).go("/chat")
            expect(page.locator("#ask")).to_have_count(0)
            page.click("text=Enter a key")
            page.fill("#key", key)
            page.press("#key", "Enter")
            page.wait_for_url("**/chat")
            page.fill("#question", "Count to ten.")
            page.press("#question", "Enter")
            expect(page.locator(".turn.assistant .figures")).to_contain_text("tokens out")
            page.click("text=Forget my key")
            page.wait_for_url(f"{url}/")
