"""What is said of a URL at which nothing can be asked."""

import pytest

from skep.bench.endpoint import find_endpoint, served_models
from skep.errors import EndpointError
from skep.testing.process import FakeEngine


def ask_endpoint(url):
    return find_endpoint(url, None)


def ask_models(url):
    return served_models(url, key=None)


@pytest.fixture(scope="module")
def engine():
    with FakeEngine() as started:
        yield started


@pytest.mark.parametrize("ask", [ask_endpoint, ask_models])
async def test_a_server_without_tls_is_known_by_its_answer(engine, ask):
    """`skep agent --url https://...` asked whether a server is running."""
    with pytest.raises(EndpointError) as refused:
        await ask(engine.url.replace("http:", "https:"))
    assert refused.value.hint == "the port answers, but not with TLS: try http:// instead of https://"


@pytest.mark.parametrize("ask", [ask_endpoint, ask_models])
async def test_where_nothing_listens_a_server_is_asked_for(ask):
    with pytest.raises(EndpointError) as refused:
        await ask("http://127.0.0.1:9")
    assert refused.value.hint.startswith("is a server running at http://127.0.0.1:9?")
