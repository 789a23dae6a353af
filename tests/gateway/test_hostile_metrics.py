"""One upstream says what is slow to read: clients of the others notice nothing."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from gateway_client import MODEL, call, open_stream, read_until

from recorded_server import recorded
from skep.testing.process import FakeEngine
from skep.wire.engine_state import LONG_STATE_BYTES

HELD_S = 30
# Labels that never end, a set on each line. To look from each to the end takes minutes.
ENDLESS = {
    "24 KB": b"a{\n" * 8_000,
    "the longest that is read at once": b"a{\n" * (LONG_STATE_BYTES // 3),
    "long enough for a thread": b"a{\n" * LONG_STATE_BYTES,
}


class HostileMetrics:
    """The pages of an upstream whose `/metrics` waits until it is let go."""

    def __init__(self, text):
        self._text = text
        self.requested = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, path):
        if path != "/metrics":
            return b"ok"
        self.requested.set()
        self.let_go.wait(HELD_S)
        return self._text


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("text", ENDLESS.values(), ids=ENDLESS)
def test_labels_without_end_of_one_upstream_stop_no_stream_of_another(
    start_gateway, workers, text
):
    """24 KB of them stopped every stream of a gateway for 17 s, each time it asked."""
    pages = HostileMetrics(text)
    with (
        recorded(page=pages) as server,
        FakeEngine(token_ms=5) as engine,
        ThreadPoolExecutor(1) as threads,
    ):
        hostile = {"name": "hostile", "url": server.url, "model": "other"}
        good = {"name": "good", "url": engine.url, "model": MODEL}
        gateway = start_gateway(workers=workers)
        gateway.serve(
            [
                {**hostile, "slots": 1, "confirms": "metrics"},
                {**good, "slots": 1, "confirms": "slots"},
            ]
        )
        with open_stream(gateway, max_tokens=300) as sock:
            engine_metrics = threads.submit(call, gateway, "GET", "/metrics/engines")
            assert pages.requested.wait(HELD_S)
            assert call(gateway, "GET", "/health")[0] == 200
            assert not engine_metrics.done()
            pages.let_go.set()
            assert b'replica="good"' in engine_metrics.result(HELD_S)[2]
            assert call(gateway, "GET", "/health")[0] == 200
            assert b'"error"' not in read_until(sock, b"data: [DONE]")
        gateway.close()
