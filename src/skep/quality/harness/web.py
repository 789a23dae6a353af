"""fastapi: the app is served on the sandbox's own loopback and asked over HTTP by the process that reports."""

from __future__ import annotations

import http.client
import inspect
import json
import types
import uuid
from dataclasses import dataclass
from typing import Any

from .blocks import Wanted, chosen, giving, serving, without_bare_apps
from .link import Link, Report
from .sources import as_one_file, has_app, merged, names_of, parsed
from .worker import Broken, Say, described, load

_PATIENCE_S = 5.0  # for one answer


def look(job: dict[str, Any], link: Link, report: Report) -> None:
    turn = job["values"]["turn"]
    link.send({key: job[key] for key in ("blocks", "earlier")})
    report.note = link.receive().get("note", "")
    link.receive()  # it listens
    asking = Asking(job["port"], link, report)
    asking.creates()
    asking.demands_all_fields()
    if turn >= 2:
        asking.keeps_the_rules()
    if turn >= 3:
        asking.finds_users_again()


@dataclass(frozen=True, slots=True)
class Reply:
    """`status` is None where no answer came; `body` is None where it is no JSON object."""

    status: int | None
    body: dict[str, Any] | None
    detail: str


class Asking:
    def __init__(self, port: int, link: Link, report: Report) -> None:
        self._port = port
        self._link = link
        self._report = report
        self._count = 0

    def person(self, **other: Any) -> dict[str, Any]:
        """Never the same twice: an app may refuse an address it knows."""
        self._count += 1
        return {"name": f"Ana {self._count}", "email": f"ana{self._count}@example.com", "age": 30 + self._count} | other

    def creates(self) -> None:
        check = self._report.check
        person = self.person()
        reply = self._post(person)
        check("POST /users answers 201", reply.status == 201, reply.detail)
        body = reply.body or {}
        check("the id is a UUID", _is_uuid(body.get("id")), f"`id` is {body.get('id')!r}" if body else reply.detail)
        same = {key: body.get(key) for key in person} == person
        check("name, email and age come back", same, f"got {json.dumps(body)[:150]}" if body else reply.detail)
        other = self._post(self.person())
        new = other.status == 201 and (other.body or {}).get("id") not in (None, body.get("id"))
        check("a second user gets another id", new, other.detail if other.status != 201 else "the same one, or none")

    def demands_all_fields(self) -> None:
        for missing in ("name", "email", "age"):
            person = self.person()
            del person[missing]
            self._refused(f"a user without {missing}", person)
        self._refused("an age that is no number", self.person(age="young"))

    def keeps_the_rules(self) -> None:
        self._refused("an empty name", self.person(name=""))
        self._refused("a blank name", self.person(name="   "))
        self._refused("a name of 101 characters", self.person(name="n" * 101))
        self._refused("an email without @", self.person(email="ana.example.com"))
        self._refused("an email without a domain", self.person(email="ana@"))
        self._refused("age -1", self.person(age=-1))
        self._refused("age 151", self.person(age=151))
        self._taken("a name of 1 character", self.person(name="A"))
        self._taken("a name of 100 characters", self.person(name="n" * 100))
        self._taken("age 0", self.person(age=0))
        self._taken("age 150", self.person(age=150))

    def finds_users_again(self) -> None:
        check = self._report.check
        people = [self.person() for _ in range(2)]
        made = [self._post(person) for person in people]
        found = [self._ask("GET", f"/users/{(reply.body or {}).get('id')}") for reply in made]
        check("GET /users/{user_id} answers 200", found[0].status == 200, found[0].detail)
        for number, (person, wrote, read) in enumerate(zip(people, made, found, strict=True), start=1):
            want = {"id": (wrote.body or {}).get("id"), **person}
            same = {key: (read.body or {}).get(key) for key in want} == want
            detail = read.detail if read.status != 200 else f"got {json.dumps(read.body)[:150]}"
            check(f"user {number} is found again as it was made", same, detail)
        reply = self._ask("GET", f"/users/{uuid.uuid4()}")
        check("an unknown user is 404", reply.status == 404, reply.detail)

    def _refused(self, what: str, person: dict[str, Any]) -> None:
        reply = self._post(person)
        self._report.check(f"{what} is refused with 422", reply.status == 422, reply.detail)

    def _taken(self, what: str, person: dict[str, Any]) -> None:
        reply = self._post(person)
        self._report.check(f"{what} is taken", reply.status == 201, reply.detail)

    def _post(self, person: dict[str, Any]) -> Reply:
        return self._ask("POST", "/users", json.dumps(person).encode())

    def _ask(self, method: str, path: str, body: bytes | None = None) -> Reply:
        if self._link.left_s <= 0:
            self._link.receive()  # raises: time is up
        try:
            status, data = self._exchange(method, path, body)
        except TimeoutError:
            return Reply(None, None, "no answer in time")
        except (OSError, http.client.HTTPException) as error:
            return Reply(None, None, f"no answer: {described(error)}")
        detail = f"answered {status}"
        if status == 500 and (raised := self._link.aside(0.1)) is not None:
            detail += f", {raised.get('raised', '')}"
        return Reply(status, _json_object(data), detail)

    def _exchange(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """Follows one redirection, as clients do: `/users` and `/users/` are the same to many apps."""
        for _ in range(2):
            timeout = max(0.1, min(_PATIENCE_S, self._link.left_s))
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout)
            try:
                connection.request(method, path, body, {"content-type": "application/json"})
                answer = connection.getresponse()
                data = answer.read(1 << 20)
            finally:
                connection.close()
            if answer.status not in (307, 308):
                break
            path = "/" + answer.headers.get("location", "").removeprefix("http://").partition("/")[2]
        return answer.status, data


def _is_uuid(value: Any) -> bool:
    try:
        uuid.UUID(value)
    except (ValueError, TypeError, AttributeError):
        return False
    return True


def _json_object(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def try_out(job: dict[str, Any], say: Say) -> None:
    import fastapi  # noqa: F401 - once for all that is tried
    import uvicorn

    config, server = uvicorn.Config, uvicorn.Server
    uvicorn.run = lambda *_args, **_options: None  # an app that starts itself is served here all the same
    code, note = _whole(job["blocks"], job["earlier"])
    say(note=note)
    app = _app_of(load(as_one_file(code)))

    class Served(server):  # type: ignore[misc, valid-type]
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets=sockets)
            if self.started:
                say(ready=True)

    settings = config(_watched(app, say), log_config=None, access_log=False, loop="asyncio", ws="none")
    Served(settings).run(sockets=[job["listening"]])
    raise Broken("the app does not start")


def _whole(blocks: list[str], earlier: list[list[str]]) -> tuple[str, str]:
    """An answer with an app of its own stands alone; changed parts are put onto the answers before."""
    if not any(earlier) or _stands_alone(blocks):
        return chosen(without_bare_apps(blocks), serving)
    base, turns = "", []
    for number, parts in enumerate(earlier, start=1):
        if not parts:
            continue
        if not base or _stands_alone(parts):
            base, turns = chosen(without_bare_apps(parts), serving)[0], [number]
        else:
            base, turns = merged(base, chosen(parts, _changing(base), base)[0]), [*turns, number]
    code, left_out = chosen(blocks, _changing(base), base)
    note = f"merged with turn {' and '.join(map(str, turns))}"
    return merged(base, code), f"{note}; {left_out}" if left_out else note


def _stands_alone(blocks: list[str]) -> bool:
    return any(map(has_app, [code for code in blocks if parsed(code) is not None] or blocks))


def _changing(base: str) -> Wanted:
    """Blocks with routes, or that define what the app before had."""
    tree = parsed(base)
    named = giving(names_of(tree) if tree else set())
    return lambda code: serving(code) or named(code)


def _app_of(module: types.ModuleType) -> Any:
    """By its type, whatever its name; of several the one called app, else the one with most routes."""
    from fastapi import APIRouter, FastAPI

    held = module.__dict__
    apps = {name: one for name, one in held.items() if isinstance(one, FastAPI)}
    if apps:
        return apps["app"] if "app" in apps else max(apps.values(), key=lambda app: len(app.routes))
    for name in ("create_app", "make_app", "get_app", "build_app"):
        made = held.get(name)
        if inspect.isfunction(made) and not inspect.signature(made).parameters and isinstance(app := made(), FastAPI):
            return app
    routers = any(isinstance(one, APIRouter) for one in held.values())
    raise Broken("no FastAPI app, only a router" if routers else "no FastAPI app", "wrong")


def _watched(app: Any, say: Say) -> Any:
    """Tells what an endpoint raised; a client sees only 500."""

    async def watched(scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send)
        except Exception as error:
            say(raised=described(error))
            raise

    return watched
