"""Running a hive from the command line: here, in the background, or announcing to the process that started us."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from skep.config.keys import has_keys
from skep.config.settings import Settings
from skep.errors import SkepError
from skep.paths import Paths
from skep.report.hive_text import HIVE, endpoint_lines
from skep.report.liveview import Line, Page, can_draw, live_view
from skep.report.terminal import byte_progress, note, print_json
from skep.units import format_seconds

if TYPE_CHECKING:
    from skep.cluster.client import RayNodes
    from skep.supervisor.supervisor import Supervisor

REFRESH_S = 0.5


def serve_here(settings: Settings, paths: Paths, *, as_json: bool) -> None:
    """In the foreground until Ctrl-C or `skep down`; a live table on a terminal, a line per change elsewhere."""
    from skep.supervisor.main import run_hive

    _warn(paths)
    story = _ConsoleReporter(paths, as_json=as_json)
    try:
        with byte_progress("downloading the weights") as progress:
            run_hive(
                settings,
                paths,
                story.changed,
                progress=progress,
                tell=lambda line: note(f"warning: {line}"),
                nodes=remote_nodes(settings),
            )
    finally:
        story.end()
    note("skep is down")


def remote_nodes(settings: Settings) -> RayNodes | None:
    """Return the nodes of the cluster that the settings name. Without one, nothing of Ray is loaded."""
    if settings.cluster is None:
        return None
    from skep.cluster.client import RayNodes

    return RayNodes(settings.cluster)


def serve_detached(settings: Settings, paths: Paths, *, as_json: bool) -> None:
    """Start it in a session of its own and return when it is ready, with what it said."""
    _warn(paths)
    ready = start_detached(settings, paths, os.environ.copy())
    _say_absent(ready["replicas"])
    if as_json:
        print_json(ready)
        return
    note(f"skep is up (pid {ready['pid']}): {', '.join(ready['models']) or 'no model yet'}")
    note("`skep ps` shows it, `skep logs NAME` its output, `skep down` stops it")
    note(*endpoint_lines(ready["openai_base_url"], ready["models"], keyed=has_keys(settings, paths)))
    print(ready["openai_base_url"])  # noqa: T201


def learn_flags(settings: Settings) -> None:
    """Which flags the installed engines know, asked once a version, with a word: vLLM takes half a minute to tell."""
    from skep.config.settings import OWN_ENGINES

    others = [serve for serve in settings.serve if serve.engine not in OWN_ENGINES]
    if not others:
        return
    from skep.engines.base import engine_named
    from skep.engines.discovery import find_program, is_installed, known_flags

    for serve in others:
        engine_named(serve.engine)  # there is such an engine
        if is_installed(serve.engine, serve.binary):
            known_flags(find_program(serve.engine, serve.binary), tell=note)


def start_detached(settings: Settings, paths: Paths, env: dict[str, str]) -> dict[str, Any]:
    """Start a hive in the background, saying what it announces until it is ready."""
    from skep.supervisor import detached

    said: dict[str, str] = {}
    with byte_progress("downloading the weights") as progress:

        def hear(message: Mapping[str, Any]) -> None:
            for row in message.get("rows", ()):
                _say_state(row, said)
            if "warning" in message:
                note(f"warning: {message['warning']}")
            if "done" in message:
                progress(message["done"], message["total"])

        return detached.start_detached(settings, paths, env, hear)


def _warn(paths: Paths) -> None:
    from skep.config.keys import keys_path, loose_mode

    if warning := loose_mode(keys_path(paths)):
        note(f"warning: {warning}")


def _say_absent(rows: list[dict[str, Any]]) -> None:
    """Servers of others are no reason to wait: the gateway takes them in when they answer."""
    for row in rows:
        if row["kind"] == "upstream" and row["state"] != "ready":
            note(f"warning: {row['name']} is not ready yet, skep keeps asking: {row['why']}")


def _say_state(row: dict[str, Any], said: dict[str, str]) -> None:
    """Print a line when a row's state has changed, with the reason if that has changed too."""
    name, state, why = row["name"], row["state"], row.get("why") or ""
    if said.get(name) == state:
        return
    said[name] = state
    told, said[f"{name} why"] = said.get(f"{name} why"), why
    note(f"{name}: {state}" + (f" ({why})" if why and why != told else ""))


class _ConsoleReporter:
    """Tells a person what happens in the foreground."""

    def __init__(self, paths: Paths, *, as_json: bool) -> None:
        self._paths = paths
        self._as_json = as_json
        self._said: dict[str, str] = {}
        self._ready = False
        self._ended = threading.Event()
        self._view: threading.Thread | None = None

    def changed(self, supervisor: Supervisor) -> None:
        if self._view is None:
            for row in supervisor.last_rows:
                _say_state(row, self._said)
        if supervisor.phase == "ready" and not self._ready:
            self._ready = True
            self._announce(supervisor)
        elif supervisor.phase == "stopping" and self._ready and self._said.get("") != "stopping":
            self._said[""] = "stopping"
            self.end()
            note("stopping: waiting for running requests (Ctrl-C again stops at once)")
        for what in supervisor.left_behind:
            if self._said.get(f" {what}") is None:
                self._said[f" {what}"] = what
                note(f"warning: {what}")

    def end(self) -> None:
        self._ended.set()
        if self._view is not None:
            self._view.join()

    def _announce(self, supervisor: Supervisor) -> None:
        _say_absent(supervisor.last_rows)
        if self._as_json:
            print_json(supervisor.description())
            sys.stdout.flush()
            return
        models = ", ".join(supervisor.replica_set.models) or "no model yet"
        note(f"ready: {supervisor.hive.url}/v1 serves {models}; Ctrl-C stops it")
        keyed = has_keys(supervisor.hive.settings, self._paths)
        note(*endpoint_lines(f"{supervisor.hive.url}/v1", list(supervisor.replica_set.models), keyed=keyed))
        if can_draw(sys.stderr):
            self._view = threading.Thread(target=self._show, daemon=True)
            self._view.start()

    def _show(self) -> None:
        """Draw a table that follows the control socket, as `skep ps` would show it."""
        from skep.report.columns import record_lines
        from skep.supervisor.control import ask

        began, rows = time.monotonic(), list[dict[str, Any]]()

        def frame(page: Page) -> list[Line]:
            up = f"up {format_seconds(int(time.monotonic() - began))}; `skep ps` has more, Ctrl-C stops it"
            return [[(line, "")] for line in (*record_lines(HIVE, rows, page.width), up)] if rows else []

        with live_view(frame):
            while not self._ended.wait(REFRESH_S):
                with contextlib.suppress(SkepError):
                    rows = ask(self._paths.socket, {"op": "status"}, timeout_s=2)["rows"]
