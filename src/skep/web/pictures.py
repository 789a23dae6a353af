"""Pages and pictures of stored runs, kept once they are drawn: that takes up to a second, and a finished run is final.

Kept in files, by run and version of skep, with a bound. Other pages take pictures of several runs from here too.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from starlette.responses import Response

from skep import __version__
from skep.report.markup import Markup, trusted
from skep.report.stored import drawn
from skep.store.database import Store
from skep.store.records import RunState, StoredRun
from skep.web.context import Site

MOST_COMPARED = 8
_PRUNED_EVERY = 50  # looking through the folder takes longer than writing one file
_FILE = re.compile(r"[\w+-][\w+.-]{0,250}", re.ASCII)
_MAIN = re.compile(r"<main>(?P<main>.*)</main>", re.DOTALL)
_STACKED = ' style="display:grid;gap:16px"'
_STYLED = re.compile(r' style="[^"]*"')  # headings that begin a little lower
_LEAD = re.compile(r'<p class="lead">.*?</p>', re.DOTALL)


class FileCache:
    """Texts in files of one folder, by name. What cannot be written is only not kept; now and then the oldest go."""

    def __init__(self, folder: Path, most: int = 400) -> None:
        self.folder = folder / __version__
        self._most = most
        self._put = 0

    def __repr__(self) -> str:
        return f"<FileCache {self.folder}>"

    def get(self, name: str) -> str | None:
        if not _FILE.fullmatch(name):
            return None
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return None

    def put(self, name: str, body: str) -> None:
        if not _FILE.fullmatch(name):
            return  # of a run whose id is none of skep's own
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, draft = tempfile.mkstemp(dir=self.folder, prefix=".draft-")
            try:
                with os.fdopen(handle, "w", encoding="utf-8") as file:
                    file.write(body)
                Path(draft).replace(self.folder / name)
            except OSError:
                Path(draft).unlink(missing_ok=True)
                raise
            self._put += 1
            if self._put % min(_PRUNED_EVERY, self._most) == 1:
                self._prune()

    def kept(self, name: str, runs: Sequence[StoredRun], make: Callable[[], str]) -> str:
        """From the shelf, or made now. Only what is made of ended runs is kept."""
        final = all(run.state in (RunState.DONE, RunState.FAILED) for run in runs)
        found = self.get(name) if final else None
        if found is None:
            found = make()
            if final:
                self.put(name, found)
        return found

    def _prune(self) -> None:
        files = [entry for entry in os.scandir(self.folder) if entry.is_file()]
        if len(files) > self._most:
            files.sort(key=lambda entry: entry.stat().st_mtime)
            for entry in files[: len(files) - self._most * 3 // 4]:
                Path(entry.path).unlink(missing_ok=True)


class Pictures:
    """What is drawn of stored runs for one dashboard. A public one has reports without texts and addresses."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._file_cache = FileCache(site.paths.cache / "web" / "pages")

    def drawn(self, store: Store, runs: Sequence[StoredRun], *, as_picture: bool = False) -> str:
        """Return the HTML or SVG document that `skep runs report` writes of these runs."""
        make = partial(drawn, store, runs, as_picture=as_picture)
        return self._file_cache.kept(self._name(runs, ".svg" if as_picture else ".html"), runs, make)

    def ready(self, run: StoredRun) -> str | None:
        """Return the report, where it was drawn before and cannot change any more."""
        is_final = run.state in (RunState.DONE, RunState.FAILED)
        return self._file_cache.get(self._name([run], ".html")) if is_final else None

    def _name(self, runs: Sequence[StoredRun], suffix: str) -> str:
        return "+".join(run.id for run in runs) + ("-public" if self._site.public else "") + suffix


def body_of(report: str) -> Markup:
    """The main part of a report, for a page that has its own frame: its pictures are drawn without inline styles."""
    found = _MAIN.search(report)
    main = found["main"] if found else ""
    return trusted(_STYLED.sub("", main.replace(_STACKED, ' class="stack"')))


def report_parts(report: str) -> Markup:
    """Return what a page of the dashboard shows of a report: the sentence above its first figure and its main part."""
    lead = _LEAD.search(report.partition("<main>")[0])
    return trusted(f'{lead[0] if lead else ""}<div class="report">{body_of(report)}</div>')


def svg_answer(body: str, *, final: bool) -> Response:
    """A picture may be looked at by itself: nothing in it may run or load."""
    headers = {
        "cache-control": "private, max-age=86400" if final else "no-store",
        "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'",
    }
    return Response(body, media_type="image/svg+xml", headers=headers)
