"""`skep sessions`: the sessions of agents, live and stored, and one of them turn by turn."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Annotated

from skep.cli.options import JsonOption, argument, command, existing, group, option
from skep.errors import SkepError
from skep.paths import user_paths
from skep.report.terminal import note, print_json, print_list
from skep.units import parse_seconds

ANSWER_S = 3.0  # for the deployment to answer
sessions_app = group(
    "sessions", "List the sessions of agents, and draw one turn by turn.", default="list"
)


@dataclass(frozen=True, kw_only=True)
class SessionListOptions:
    since: Annotated[str, option("Sessions that were heard of within this time.")] = "7d"
    limit: Annotated[
        int, option("Number of sessions to list, newest first.", "-n", "--limit", min=1)
    ] = 30
    everything: Annotated[
        bool, option("List sessions of a single turn, too, that are over.", "--all")
    ] = False
    as_json: JsonOption = False


@command(sessions_app, "skep sessions --since 1d", name="list")
def list_sessions(options: SessionListOptions) -> None:
    """List the sessions of agents, newest first: those of the running deployment and stored ones.

    COLD counts turns whose prompt was read again; a session's first turn is not among them.
    """
    from skep.report.columns import print_records
    from skep.report.sessions import has_turns, session_columns, session_document
    from skep.store.database import read_store
    from skep.store.sessions import MAKES_ONE, NONE_YET, sessions_since, with_live
    from skep.supervisor.hive_status import read_sessions

    since_s = parse_seconds(options.since)
    paths = user_paths(os.environ)
    try:
        live = read_sessions(paths, ANSWER_S)
    except SkepError:  # no deployment answers: the stored sessions are listed
        live = []
    now = time.time()
    with read_store(paths.store) as store:
        sessions = with_live(sessions_since(store, now - since_s), live, now - since_s)
    listed = [entry for entry in sessions if options.everything or has_turns(entry, now)]
    if len(listed) < len(sessions):
        note(f"{len(sessions) - len(listed)} of a single turn are left out; --all lists them")
    print_list(
        listed[: options.limit],
        lambda entries: print_records(session_columns(now), entries),
        lambda session: session_document(session, now),
        as_json=options.as_json,
        none_yet=f"{NONE_YET}; {MAKES_ONE}",
    )


@command(sessions_app, "skep sessions show 3fa9")
def show(
    session: Annotated[str, argument("ID from `skep sessions`, or the beginning of it.")],
    as_json: JsonOption = False,
) -> None:
    """Draw a session turn by turn: tokens, cache hits, waits, and why a turn was cold."""
    from skep.report.columns import print_records
    from skep.report.sessions import (
        LEGEND,
        TURNS,
        advice,
        drawn_turns,
        session_title,
        story_document,
    )
    from skep.store.sessions import MAKES_ONE, NONE_YET, figures_of, requests_of_session

    with existing(NONE_YET, MAKES_ONE) as store:
        requests = requests_of_session(store, session)
    figures = figures_of(requests)
    if as_json:
        print_json(story_document(figures, requests, time.time()))
        return
    note(session_title(figures), LEGEND)
    print_records(TURNS, drawn_turns(requests))
    note(*advice(requests))
