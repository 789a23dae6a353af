"""Messages about a URL at which no model can be asked."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from recorded_server import recorded
from skep.bench.endpoint import find_endpoint, served_models
from skep.errors import EndpointError


def ask_endpoint(url):
    return find_endpoint(url, None)


def ask_models(url):
    return served_models(url, key=None)


@asynccontextmanager
async def server_without_tls():
    async def refuse(reader, writer):
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize("ask", [ask_endpoint, ask_models])
async def test_a_server_without_tls_is_known_by_its_answer(ask):
    """`skep agent --url https://...` asked whether a server is running."""
    async with server_without_tls() as port:
        with pytest.raises(EndpointError) as refused:
            await ask(f"https://127.0.0.1:{port}")
    hint = "the port answers, but not with TLS: try http:// instead of https://"
    assert refused.value.hint == hint


@pytest.mark.parametrize("ask", [ask_endpoint, ask_models])
async def test_where_nothing_listens_a_server_is_asked_for(ask):
    with pytest.raises(EndpointError) as refused:
        await ask("http://127.0.0.1:9")
    assert refused.value.hint.startswith("is a server running at http://127.0.0.1:9?")


@pytest.mark.parametrize("ask", [ask_endpoint, ask_models])
async def test_a_server_that_is_elsewhere_is_told_with_its_place(ask):
    place = "location", "https://box.example/v1/models"
    with (
        recorded(page=lambda _: (301, b""), lines=[place]) as server,
        pytest.raises(EndpointError) as refused,
    ):
        await ask(server.url)
    assert str(refused.value) == f"{server.url}/v1/models is elsewhere (HTTP 301)"
    assert refused.value.hint == "it names 'https://box.example/v1': try that as --url"
