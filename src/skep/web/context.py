"""What every page is made from: where things lie, who may look, what may be shown. Knows nothing of HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from skep.config.keys import keys_path, read_keys
from skep.errors import UserError
from skep.monitor.store import SeriesStore
from skep.paths import LOOPBACK, Paths
from skep.store.database import Store, open_store
from skep.units import UNKNOWN, public_name, public_url
from skep.web.public_mode import hide_private_columns


@dataclass(frozen=True, slots=True)
class Site:
    """One dashboard. A public one is read-only and shows no prompts, answers, keys, addresses, flows or paths."""

    paths: Paths
    public: bool = False
    guarded: bool = False  # a key is wanted
    api_key: str | None = None  # SKEP_API_KEY, which opens it as well
    clock: Callable[[], float] = time.time
    hosts: frozenset[str] | None = None  # names it may be asked by; None: any

    @property
    def writable(self) -> bool:
        """Whether notes may be written here."""
        return not self.public

    @contextmanager
    def store(self) -> Iterator[Store | None]:
        """Open for reading, for one request; None: nothing has been stored yet. In public, without what is not."""
        if not self.paths.store.exists():
            yield None
            return
        with open_store(self.paths.store, read_only=True) as store:
            yield hide_private_columns(store) if self.public else store

    @contextmanager
    def series(self) -> Iterator[SeriesStore | None]:
        """The same, for what was watched over time."""
        with self.store() as store:
            yield None if store is None else SeriesStore(store)

    def hide(self, url: str | None) -> str:
        """An address, a path or the name of a flow as it may be shown here."""
        if url is None or self.public:
            return UNKNOWN
        return public_url(url)

    def label(self, model: str | None) -> str:
        """The name of a model. Where it is a file or an address, a public page shows its last part alone."""
        if model is None:
            return UNKNOWN
        return public_name(model) if self.public else model


def make_site(
    paths: Paths, *, host: str, public: bool = False, api_key: str | None = None, clock: Callable[[], float] = time.time
) -> Site:
    """The gateway's rule: beyond loopback a key is wanted. Raises UserError where there is none.

    On loopback only loopback's own names are answered to, so that no page of somebody else's can reach in by a name
    that it lets point here.
    """
    if public:
        return Site(paths, public=True, clock=clock)
    if host in LOOPBACK:
        return Site(paths, clock=clock, hosts=frozenset((*LOOPBACK, host)))
    if not api_key and not read_keys(keys_path(paths)):
        hint = "`skep key add NAME` makes a key; or set SKEP_API_KEY, or bind 127.0.0.1, or say --public"
        raise UserError(f"showing the dashboard on `{host}` without an API key would let anybody in", hint=hint)
    return Site(paths, guarded=True, api_key=api_key, clock=clock)
