"""Who may see and do what: every route has one class, and each kind of visitor gets what its class
allows.
"""

import http.client
import json
import socket
from collections import Counter
from itertools import islice
from urllib.parse import urlencode

import pytest
from running_site import running
from stored_runs import ANSWER, PROMPT, installation, put_run, put_session, put_tuning

from sample_swarm import put_swarm_run
from sample_tuning import sample_stages
from skep.config.keys import KeySpec, add_entry, checked, digest_of, keys_path
from skep.web.app import make_app
from skep.web.context import Site
from skep.web.rights import ROUTE_CLASSES, RouteClass, address_of

STORED = {}
KEYS = {"client": "sk-client", "admin": "sk-admin", "SKEP_API_KEY": "sk-environment"}
FREE = (RouteClass.OPEN, RouteClass.SHARED)
REFUSED = (401, 403)


def fill(store):
    STORED["run"] = put_run(store, 0)
    STORED["session"] = put_session(store)
    STORED["swarm"] = put_swarm_run(store, "secret-names.jsonl")
    STORED["tuning"] = put_tuning(store, sample_stages())


@pytest.fixture(scope="module")
def keys(paths):
    add_entry(keys_path(paths), checked(KeySpec("client", digest_of(KEYS["client"]))))
    add_entry(keys_path(paths), checked(KeySpec("admin", digest_of(KEYS["admin"]), admin=True)))


@pytest.fixture(scope="module")
def guarded(paths, keys):
    with running(Site(paths, guarded=True, api_key=KEYS["SKEP_API_KEY"])) as ask:
        yield ask


def request_of(address):
    """The method and a path for the address of a route, with what is stored in the place of its
    names.
    """
    method, _, path = address.partition(" ")
    for folder in ("swarm", "tuning", "runs", "sessions"):
        if f"/{folder}/" in path:
            path = path.replace("{id}", STORED[folder.removesuffix("s")])
    if path == "/api/run.json":
        path = f"{path}?id={STORED['run']}"
    return method, path.replace("{name}", "skep.css")


def status_of(ask, address, key=None, **headers):
    """The status of the answer alone: a stream has no end."""
    method, path = request_of(address)
    headers = {"origin": ask.origin, **headers}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    body = None
    if method == "POST":
        body = urlencode({"text": "a note", "key": KEYS["admin"]})
        headers["content-type"] = "application/x-www-form-urlencoded"
    connection = http.client.HTTPConnection("127.0.0.1", ask.port, timeout=30)
    try:
        connection.request(method, path, body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def of_class(*classes):
    return [address for address, kind in ROUTE_CLASSES.items() if kind in classes]


def test_every_route_of_the_dashboard_has_exactly_one_class(paths):
    """Whoever adds a route says who may use it; one without a class is for admins alone."""
    app = make_app(Site(paths), warm=False)
    addresses = Counter(address_of(route) for route in app.routes)
    assert addresses == Counter(ROUTE_CLASSES.keys())


@pytest.mark.parametrize("address", of_class(RouteClass.ADMIN))
def test_what_is_the_owners_is_refused_to_the_key_of_a_client(guarded, address):
    assert status_of(guarded, address, KEYS["client"]) == 403


@pytest.mark.parametrize("address", of_class(*FREE, RouteClass.KEY))
def test_what_is_for_every_key_is_answered_to_the_key_of_a_client(guarded, address):
    status = status_of(guarded, address, KEYS["client"])
    assert status not in (*REFUSED, 404, 405), status


@pytest.mark.parametrize("key", ["admin", "SKEP_API_KEY"])
@pytest.mark.parametrize("address", ROUTE_CLASSES)
def test_an_admin_is_refused_nothing(guarded, address, key):
    status = status_of(guarded, address, KEYS[key])
    assert status not in (*REFUSED, 404, 405), status


@pytest.mark.parametrize("address", ROUTE_CLASSES)
@pytest.mark.usefixtures("keys")
def test_on_loopback_everybody_is_an_admin(ask, address):
    status = status_of(ask, address)
    assert status not in (*REFUSED, 404, 405), status


@pytest.mark.parametrize("address", ROUTE_CLASSES)
def test_the_public_gets_what_is_open_and_shared_and_may_send_nothing(public, address):
    status = status_of(public, address)
    is_read = address.startswith("GET ")
    if is_read and ROUTE_CLASSES[address] in FREE:
        assert status in (200, 303, 400), status
    else:
        assert status == (404 if is_read else 405)


@pytest.mark.parametrize("address", of_class(RouteClass.SHARED, RouteClass.KEY, RouteClass.ADMIN))
def test_without_a_key_nothing_but_the_login_is_answered(guarded, address):
    assert status_of(guarded, address) in (401, 303)
    method, path = request_of(address)
    response, _ = guarded(path, method, {"origin": guarded.origin})
    assert response.status == 401 or response.headers["location"].startswith("/login?")


def client(path, ask):
    return ask(path, headers={"authorization": f"Bearer {KEYS['client']}"})


def test_a_client_sees_how_many_swarm_runs_there_are_and_why_no_more(guarded):
    page = client("/swarm", guarded)[1]
    assert "1 swarm run: 1 done." in page
    assert "skep key add NAME --admin" in page
    assert "secret-names" not in page
    assert STORED["swarm"] not in page
    assert json.loads(client("/api/swarm.json", guarded)[1]) == {"counts": {"done": 1}}


def test_a_refusal_says_what_an_admins_key_is(guarded):
    response, text = client(f"/api/swarm/{STORED['swarm']}.json", guarded)
    error = json.loads(text)["error"]
    assert response.status == 403
    assert "admin" in error["message"]
    assert "skep key add NAME --admin" in error["hint"]


@pytest.mark.parametrize(
    "kind", ["/runs/{run}/report.html", "/runs/{run}", "/api/run.json?id={run}"]
)
def test_a_client_reads_the_figures_of_a_run_without_prompts_and_addresses(guarded, kind):
    response, text = client(kind.format(**STORED), guarded)
    assert response.status == 200
    for private in (PROMPT, ANSWER, "127.0.0.1:8400"):
        assert private not in text


def changed_mark(path, *, admin):
    """Write the file of keys anew, with that mark for the key."""
    line = "admin = true\n" if admin else ""
    text = f'[[key]]\nname = "phone"\nsha256 = "{digest_of("sk-phone")}"\n{line}'
    path.write_text(text)
    path.chmod(0o600)


@pytest.fixture
def own_keys(tmp_path):
    """A dashboard of its own, its file of keys, and the session of an admin's browser."""
    paths = installation(tmp_path, fill)
    path = keys_path(paths)
    path.parent.mkdir(parents=True, exist_ok=True)
    changed_mark(path, admin=True)
    with running(Site(paths, guarded=True)) as ask:
        form = {"key": "sk-phone"}
        response, _ = ask("/login", "POST", form=form, headers={"origin": ask.origin})
        yield ask, path, {"cookie": response.headers["set-cookie"].partition(";")[0]}


def test_a_session_loses_its_rights_with_the_mark_of_its_key(own_keys):
    ask, path, session = own_keys
    address = f"/swarm/{STORED['swarm']}"
    assert ask(address, headers=session)[0].status == 200
    changed_mark(path, admin=False)
    assert ask(address, headers=session)[0].status == 403
    changed_mark(path, admin=True)
    assert ask(address, headers=session)[0].status == 200


def test_a_stream_of_an_admin_ends_with_the_mark_of_the_key(own_keys):
    ask, path, session = own_keys
    with socket.create_connection(("127.0.0.1", ask.port), timeout=10) as watching:
        head = f"GET /live HTTP/1.1\r\nHost: x\r\nCookie: {session['cookie']}\r\n\r\n"
        watching.sendall(head.encode())
        lines = watching.makefile("rb")
        assert next(line for line in lines if line.startswith(b"data:"))
        changed_mark(path, admin=False)
        rest = list(islice(lines, 100))
    assert rest[-2:] == [b"0\r\n", b"\r\n"]
