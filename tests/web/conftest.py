"""Dashboards for the tests of a module: its `fill` stores what they show, its `NOW` and `hive` are
theirs, if any.
"""

import time
from functools import partial

import pytest
from running_site import no_hive, running
from stored_runs import installation

from skep.config.keys import KeySpec, add_entry, checked, digest_of, keys_path
from skep.web.context import Site


def _running(request, paths, **options):
    now, hive = (
        getattr(request.module, name, usual) for name, usual in (("NOW", None), ("hive", no_hive))
    )
    clock = time.time if now is None else lambda: now
    return running(Site(paths, clock=clock, **options), read=hive)


@pytest.fixture(scope="module")
def paths(request, tmp_path_factory):
    return installation(tmp_path_factory.mktemp("filled"), request.module.fill)


@pytest.fixture(scope="module")
def ask(request, paths):
    with _running(request, paths) as client:
        yield client


@pytest.fixture(scope="module")
def public(request, paths):
    with _running(request, paths, public=True) as client:
        yield client


@pytest.fixture(scope="module")
def client_key(request, paths):
    """The same as a key without the mark `admin` sees it: the function asks with that key."""
    add_entry(keys_path(paths), checked(KeySpec("client", digest_of("sk-client"))))
    with _running(request, paths, guarded=True) as client:
        ask = partial(client, headers={"authorization": "Bearer sk-client"})
        ask.port = client.port
        yield ask


@pytest.fixture(scope="module")
def bare(tmp_path_factory):
    """On loopback, with no hive and nothing stored."""
    paths = installation(tmp_path_factory.mktemp("bare"))
    paths.store.unlink()
    with running(Site(paths, hosts=frozenset(("127.0.0.1", "localhost", "::1")))) as client:
        yield client
