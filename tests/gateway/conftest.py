"""Gateways in front of fake engines."""

from contextlib import ExitStack

import pytest

from skep.testing.process import FakeEngine


@pytest.fixture
def serving(start_gateway):
    """Start fake engines with these options, and a gateway before them: returns it and them."""
    with ExitStack() as stack:

        def start(*engines, slots=2, **setup):
            running = [
                stack.enter_context(FakeEngine(**{"slots": slots, "token_ms": 1, **options}))
                for options in engines or ({},)
            ]
            gateway = start_gateway(**setup)
            gateway.serve_engines(*running, slots=slots)
            return gateway, *running

        yield start
