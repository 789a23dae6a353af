"""The pages of agents' sessions: all of the last days, and one turn by turn.

They show digests and counts alone; even so only the owner may see them, as nobody knows whose a
session is."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from skep.config.gateway_messages import SessionFigures
from skep.errors import SkepError
from skep.monitor.records import DAY_S
from skep.report.session_pictures import tokens_picture, waits_picture
from skep.report.sessions import (
    TURNS,
    advice,
    drawn_turns,
    has_turns,
    session_columns,
    session_document,
    session_title,
    story_document,
)
from skep.report.svg import alive
from skep.store.records import GatewayRequest
from skep.store.sessions import figures_of, requests_of_session, sessions_since, with_live
from skep.supervisor.hive_status import read_sessions
from skep.web.context import Site
from skep.web.layout import page
from skep.web.responses import json_answer, or_not_found

SINCE_S = 7 * DAY_S
ANSWER_S = 1.0  # for the deployment to answer
SESSIONS_LISTED = 200  # sessions that the page lists; JSON has all
MOST_TURNS = 500  # of a session that the page lists, the last ones


class SessionPages:
    def __init__(self, site: Site) -> None:
        self.site = site

    def listing(self, _request: Request) -> Response:
        now = self.site.clock()
        sessions = [session for session in self._sessions() if has_turns(session, now)]
        columns = session_columns(now)
        return page(
            self.site,
            "sessions.html",
            sessions=sessions[:SESSIONS_LISTED],
            columns=columns,
            full=len(sessions) > SESSIONS_LISTED,
            most=SESSIONS_LISTED,
        )

    def as_json(self, _request: Request) -> Response:
        now = self.site.clock()
        return json_answer(
            {"sessions": [session_document(session, now) for session in self._sessions()]}
        )

    def session_page(self, request: Request) -> Response:
        requests = self._requests(request)
        turns = drawn_turns(requests)
        figures = figures_of(requests)
        with alive():
            tokens = tokens_picture(turns)
            waits = waits_picture(turns)
        return page(
            self.site,
            "session.html",
            title=f"Session {figures.session}",
            figures=figures,
            words=session_title(figures),
            tokens=tokens,
            waits=waits,
            advice=advice(requests),
            columns=[column for column in TURNS if column.key != "bar"],
            turns=turns[-MOST_TURNS:],
            full=len(turns) > MOST_TURNS,
            most=MOST_TURNS,
        )

    def session_json(self, request: Request) -> Response:
        requests = self._requests(request)
        return json_answer(story_document(figures_of(requests), requests, self.site.clock()))

    def _sessions(self) -> list[SessionFigures]:
        since = self.site.clock() - SINCE_S
        try:
            live = read_sessions(self.site.paths, ANSWER_S)
        except SkepError:  # no deployment answers: the stored sessions are shown
            live = []
        with self.site.store() as store:
            return with_live(sessions_since(store, since), live, since)

    def _requests(self, request: Request) -> list[GatewayRequest]:
        with self.site.store() as store, or_not_found():
            return requests_of_session(store, request.path_params["id"])


def routes(site: Site) -> list[Route]:
    pages = SessionPages(site)
    return [
        Route("/sessions", pages.listing),
        Route("/sessions/{id}", pages.session_page),
        Route("/api/sessions.json", pages.as_json),
        Route("/api/sessions/{id}.json", pages.session_json),
    ]
