"""Priorities, keys, aliases, timeouts, health and accounts of a real gateway process in front of
real fake engines.
"""

import contextlib
import json
import os
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import pytest
from gateway_client import (
    body,
    call,
    error_of,
    metrics,
    open_post,
    open_stream,
    post,
    read_until,
    refusal,
    status_of,
    told,
    until,
)
from hypothesis import example, given

from recorded_server import recorded
from skep.config.keys import digest_of
from skep.gateway.request_policy import KEY_HEADERS, sort_headers
from skep.wire.heads import HOP_BY_HOP


def replica(engine, name="r0", **fields):
    return {
        "name": name,
        "model": "fake-model",
        "url": engine.url,
        "slots": 2,
        "confirms": "slots",
        **fields,
    }


def states_of(gateway):
    return {row["name"]: row["state"] for row in status_of(gateway)["replicas"]}


def test_a_header_of_ours_that_makes_no_sense_is_told_so(serving):
    gateway, _ = serving()
    for header, value in (("priority", "urgent"), ("max_wait", "soon"), ("max_wait", "-1")):
        assert refusal(gateway, **{f"x_skep_{header}": value}) == (400, "bad_request"), value


# Models and routing


def test_the_list_of_models_tells_the_worst_checks_for_agents_of_its_replicas(
    serving,
):
    gateway, first, second = serving({}, {})
    passed = {"tool_calls": {"state": "ok", "text": "tool calls: ok"}}
    failed = {"tool_calls": {"state": "warning", "text": "tool calls: none"}}
    gateway.serve([replica(first, checks=passed), replica(second, "r1", checks=failed)])
    [listed] = json.loads(call(gateway, "GET", "/v1/models")[2])["data"]
    assert listed["skep"]["checks"] == failed
    gateway.serve([replica(first)])
    [listed] = json.loads(call(gateway, "GET", "/v1/models")[2])["data"]
    assert "checks" not in listed["skep"]


def test_several_models_stand_behind_one_endpoint(serving):
    gateway, first, second = serving({"model": "one"}, {"model": "two"}, aliases={"gpt-*": "two"})
    gateway.serve(
        [
            {**replica(first), "model": "one"},
            {**replica(second, "r1"), "model": "two", "context": 2048},
        ]
    )
    listed = json.loads(call(gateway, "GET", "/v1/models")[2])["data"]
    assert [(model["id"], model["skep"].get("context")) for model in listed] == [
        ("one", None),
        ("two", 2048),
    ]
    for model, name in (("one", "r0"), ("two", "r1"), ("gpt-4o", "r1")):
        assert told(post(gateway, body(model=model))[1], "replica") == name
    status, _, text = post(gateway, body(model="three"))
    assert (status, error_of(text)["code"]) == (404, "model_not_found")
    assert "known: one, two" in error_of(text)["message"]
    assert refusal(gateway, {"messages": []}) == (400, "bad_request"), "which of them is not said"
    assert (
        told(post(gateway, {"messages": [], "max_tokens": 1}, x_skep_model="one")[1], "replica")
        == "r0"
    )


def test_a_conversation_returns_to_its_replica(serving):
    gateway, *engines = serving({}, {}, slots=4)
    for number in range(6):
        first = {"role": "user", "content": f"conversation {number}"}
        messages = [{"role": "system", "content": "shared by all"}, first]
        homes = set()
        for turn in range(4):
            homes.add(told(post(gateway, body(messages=messages))[1], "replica"))
            messages += [
                {"role": "assistant", "content": "yes"},
                {"role": "user", "content": f"more {turn}"},
            ]
        assert len(homes) == 1
    sessions = [
        {told(post(gateway, x_skep_session=name)[1], "replica") for _ in range(4)}
        for name in "abcdefgh"
    ]
    assert all(len(homes) == 1 for homes in sessions)
    assert min(engine.state()["requests"] for engine in engines) > 0


# Paths and headers


def test_a_browser_is_told_what_is_served_and_how_to_call_it(serving, start_gateway):
    gateway, engine = serving()
    gateway.serve([{**replica(engine), "model": "<b>mine</b>", "context": 2048}])
    status, headers, page = call(gateway, "GET", "/", host="box:8400")
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"&lt;b&gt;mine&lt;/b&gt;</td><td>2</td><td>2048</td>" in page
    assert b"OPENAI_BASE_URL=http://box:8400/v1 OPENAI_API_KEY=none" in page
    guarded = start_gateway(keys=[{"name": "mine", "sha256": digest_of("k-mine")}])
    guarded.serve([{**replica(engine), "model": "secret-model"}])
    page = call(guarded, "GET", "/")[2]
    assert b"It requires an API key." in page
    assert b"secret-model" not in page


def asked_for(gateway, method, path):
    status, _, text = call(gateway, method, path, {"model": "fake-model"})
    return status, error_of(text)["code"]


def test_the_gateway_shows_each_of_its_models(serving):
    gateway, engine = serving()
    assert json.loads(call(gateway, "GET", "/v1/models/fake-model")[2])["id"] == "fake-model"
    assert asked_for(gateway, "GET", "/v1/models/nobody") == (404, "model_not_found")
    assert call(gateway, "HEAD", "/v1/models")[0] == 200
    assert engine.state()["requests"] == 0


def test_any_path_passes_and_an_owners_path_does_not(serving):
    gateway, engine = serving()
    assert call(gateway, "POST", "/v1/anything.v2/new", {"model": "fake-model", "x": 1})[0] == 200
    status, _, text = call(gateway, "GET", "/unknown/path")
    assert status == 404
    assert "source" not in json.loads(text)  # the engine's own word
    misspelt = ("//slots", "/v1/../slots", "/v1/%2e%2e/slots", "/x%2f..%2fslots", "/v1;x/slots")
    for path in (*misspelt, "/./slots", "/v1/./chat/completions", "/slots/."):
        assert asked_for(gateway, "POST", path) == (400, "bad_request"), path
    paths = (
        "/slots",
        "/slots/0?action=erase",
        "/reset_prefix_cache",
        "/v1/load_lora_adapter",
        "/%73lots",
        "/props",
    )
    weights = (
        "/init_weight_transfer_engine",
        "/start_weight_update",
        "/update_weights",
        "/is_paused",
    )
    for path in (*paths, *weights, "/Slots"):
        assert asked_for(gateway, "POST", path) == (403, "admin_path"), path
    assert engine.state()["requests"] == 1


def test_an_engine_that_skep_started_is_asked_only_for_what_clients_ask(serving):
    """A list of what is forbidden missed vLLM's weight transfer, and every path that an engine
    adds.
    """
    gateway, engine = serving()
    gateway.serve([replica(engine, own_engine=True)])
    assert post(gateway)[0] == 200
    assert call(gateway, "POST", "/tokenize", {"model": "fake-model", "content": "a"})[0] in (
        200,
        404,
    )
    for path in ("/init_weight_transfer_engine", "/slots"):
        for method in ("GET", "POST"):
            assert asked_for(gateway, method, path) == (403, "admin_path"), path
    for path in ("/v1/anything/new", "/ui", "/v1/chat/completions/x"):
        for method in ("GET", "POST"):
            assert asked_for(gateway, method, path) == (404, "path_not_found"), path
    assert asked_for(gateway, "POST", "/") == (404, "path_not_found")
    assert engine.state()["requests"] == 1


def test_the_key_headers_of_one_hop_and_an_engines_leave_for_web_pages_stay_behind(
    start_gateway,
):
    """llama.cpp and vLLM allow every page; two such headers are none, and only the gateway may
    give leave.
    """
    read = {}
    gateway = start_gateway(api_key="secret", origins=["http://a.example"])

    def answer(_path, headers, _body):
        read.update({name.lower(): value for name, value in headers.items()})
        return b"ok"

    lines = [("x-private", "1"), ("connection", "x-private"), ("access-control-allow-origin", "*")]
    with recorded(answer, lines=lines) as engine:
        gateway.serve(
            [
                {
                    "name": "r0",
                    "model": "m",
                    "url": engine.url,
                    "slots": 1,
                    "authorization": "Bearer own",
                }
            ]
        )
        status, headers, _ = call(
            gateway,
            "POST",
            "/v1/x",
            {"model": "m"},
            authorization="Bearer secret",
            x_api_key="secret",
            keep_alive="5",
            connection="keep-alive, X-Hop",
            x_hop="1",
            x_kept="yes",
            x_skep_agent="me",
            te="trailers",
            proxy_authorization="p",
            origin="http://a.example",
        )
    assert (status, headers["connection"]) == (200, None)
    assert headers.get_all("access-control-allow-origin") == ["http://a.example"]
    assert (read["authorization"], read["x-kept"]) == ("Bearer own", "yes")
    assert "secret" not in str(read)
    for name in ("x-hop", "x-skep", "keep-alive", "te", "proxy-", "connection", "origin"):
        assert not any(key.startswith(name) for key in read), name


def test_web_pages_may_not_call_unless_they_are_named(serving):
    gateway, _ = serving(origins=["http://localhost:3000"])
    assert refusal(gateway, origin="http://evil.example") == (403, "origin_refused")
    preflight = {"origin": "http://localhost:3000", "access_control_request_method": "POST"}
    status, headers, _ = call(
        gateway, "OPTIONS", **preflight, access_control_request_headers="x-skep-agent"
    )
    assert (status, headers["access-control-allow-headers"]) == (204, "x-skep-agent")
    for _ in range(2):  # the second time the head is known
        status, headers, _ = post(gateway, origin="http://localhost:3000")
        assert (status, headers["access-control-allow-origin"]) == (200, "http://localhost:3000")
    assert (
        call(gateway, "GET", "/v1/models", origin="http://localhost:3000")[1]["vary"] == "origin"
    )


# Keys


SLOW_KEY = {
    "name": "slow",
    "sha256": digest_of("k-slow"),
    "priority": "batch",
    "max_concurrent": 1,
}
RARE_KEY = {"name": "rare", "sha256": digest_of("k-rare"), "rate": "1/m"}


def test_a_key_has_a_class_and_a_cap(serving):
    gateway, engine = serving({"token_ms": 20}, slots=4, keys=[SLOW_KEY])
    assert post(gateway)[0] == post(gateway, authorization="Bearer wrong")[0] == 401
    with ThreadPoolExecutor(2) as crowd:
        given = {"authorization": "Bearer k-slow", "x_skep_priority": "interactive"}
        running = crowd.submit(post, gateway, body(max_tokens=40), **given)
        engine.wait_for(running=1)
        assert refusal(gateway, x_api_key="k-slow") == (429, "too_many_requests_of_key")
        assert running.result()[0] == 200
    labels = (
        'model="fake-model",class="batch",replica="r0",outcome="answered",status="200",code=""'
    )
    assert f"skep_requests_total{{{labels}}}" in metrics(gateway, x_api_key="k-slow")


def test_a_key_has_a_rate_until_it_is_removed(serving):
    gateway, _ = serving(keys=[SLOW_KEY, RARE_KEY])
    assert post(gateway, x_api_key="k-rare")[0] == 200
    status, headers, text = post(gateway, x_api_key="k-rare")
    assert (status, error_of(text)["code"]) == (429, "rate_limited")
    assert 50 <= int(headers["retry-after"]) <= 61
    gateway.send({"op": "settings", "keys": [SLOW_KEY]})
    until(lambda: refusal(gateway, x_api_key="k-rare") == (401, "invalid_api_key"))
    assert post(gateway, x_api_key="k-slow")[0] == 200


def test_a_key_called_as_the_variable_is_opens_beside_it(serving):
    """Two keys of one name ended the gateway whenever it was started."""
    gateway, _ = serving(
        api_key="k-variable", keys=[{"name": "SKEP_API_KEY", "sha256": digest_of("k-file")}]
    )
    assert [post(gateway, x_api_key=key)[0] for key in ("k-variable", "k-file", "k-none")] == [
        200,
        200,
        401,
    ]


# Failure


@pytest.mark.parametrize(
    ("fault", "of_the_good"),
    [('{"kind": "503", "times": 50}', 10), ('{"kind": "429", "times": 1}', 1)],
)
def test_a_replica_that_says_503_is_passed_over_and_a_429_does_not_shut_it_out(
    serving, fault, of_the_good
):
    gateway, _, good = serving({"fault": fault}, {})
    # Both have said that they are free.
    until(lambda: not any(status_of(gateway)["busy"].values()))
    assert [post(gateway)[0] for _ in range(10)] == [200] * 10
    assert good.state()["requests"] >= of_the_good
    assert of_the_good > 1 or set(states_of(gateway).values()) == {"up"}


def test_a_replica_that_talks_nonsense_may_still_work_so_its_slot_is_kept(serving):
    gateway, engine = serving(
        {"deaf_ms": 600, "fault": "garbage"}, slots=1, limits={"attempts": 1}
    )
    assert [post(gateway)[0] for _ in range(2)] == [502, 200]
    assert engine.state()["max_inside"] <= 1


def test_a_silent_replica_is_given_up_after_the_first_byte_timeout(serving):
    gateway, engine = serving({"fault": "hang-first"}, timeouts={"first_byte_s": 0.2})
    assert refusal(gateway) == (504, "replica_timeout")
    engine.wait_for(running=0)


def test_a_stream_that_falls_silent_ends_with_an_error_event(serving):
    gateway, engine = serving(
        {"fault": '{"kind": "hang-mid", "after_tokens": 2}'}, timeouts={"idle_s": 0.2}
    )
    status, _, text = post(gateway, body(max_tokens=50, stream=True))
    last = text.decode().strip().splitlines()[-1]
    assert (status, error_of(last.removeprefix("data: "))["code"]) == (200, "stream_cut")
    engine.wait_for(running=0)


def test_a_frozen_replica_loses_its_requests_to_another_one_and_comes_back(serving):
    """SIGSTOP: its connections stay open, nothing comes.

    Health checks see it; when it wakes it is tried again.
    """
    watch = {"health_every_s": 0.2, "health_timeout_s": 0.2}
    gateway, *engines = serving(
        {"token_ms": 5}, {"token_ms": 5}, limits={"dead_after_s": 1.0}, watch=watch
    )
    with ThreadPoolExecutor(1) as crowd:
        first = crowd.submit(post, gateway, body(max_tokens=100))
        until(lambda: status_of(gateway)["in_flight"] == 1)
        busy = status_of(gateway)["busy"]
        frozen, alive = ("r0", "r1") if busy["r0"] else ("r1", "r0")
        stopped = engines[int(frozen[1])].pid
        os.kill(stopped, signal.SIGSTOP)
        try:
            status, headers, _ = first.result(timeout=30)
            assert (status, told(headers, "replica")) == (200, alive)
            assert states_of(gateway)[frozen] in ("open", "half-open")
        finally:
            os.kill(stopped, signal.SIGCONT)
    until(lambda: set(states_of(gateway).values()) == {"up"})
    until(lambda: not any(status_of(gateway)["busy"].values()))


def test_drain_undrain_add_and_remove_break_no_stream(serving):
    gateway, first, second = serving({"token_ms": 5}, {"token_ms": 5})
    gateway.serve([replica(first)])

    def homes(requests):
        return {told(post(gateway)[1], "replica") for _ in range(requests)}

    with open_post(gateway, body(stream=True, max_tokens=100)) as stream:
        read_until(stream, b"data:")
        gateway.serve([replica(first, draining=True), replica(second, "r1")])
        assert homes(4) == {"r1"}
        gateway.serve([replica(second, "r1")])
        assert homes(1) == {"r1"}
        assert b"[DONE]" in read_until(stream, b"0\r\n\r\n")
    gateway.serve([replica(first), replica(second, "r1", draining=True)])
    assert homes(3) == {"r0"}


# Accounts


def test_every_request_is_a_row_a_line_and_a_count(serving, tmp_path):
    store = tmp_path / "skep.sqlite3"
    log = tmp_path / "requests.log"
    gateway, engine = serving(slots=1, store=str(store), log=str(log), strict_models=True)
    post(gateway, x_skep_agent="builder-1")
    streamed = body(stream=True, max_tokens=6, stream_options={"include_usage": True})
    post(gateway, streamed, x_skep_priority="interactive")
    post(gateway, body(model="nobody"))
    open_stream(gateway, max_tokens=5000).close()
    engine.wait_for(hangups=1)
    until(lambda: sum("requests_total" in name for name in metrics(gateway)) == 4)
    counted = metrics(gateway)
    gateway.close()
    columns = "outcome, priority, flow, status, output_tokens, streamed"
    with contextlib.closing(sqlite3.connect(store)) as connection:
        rows = connection.execute(
            f"SELECT {columns} FROM gateway_requests ORDER BY arrived_at"
        ).fetchall()
    assert rows == [
        ("answered", "normal", "builder-1", 200, 4, 0),
        ("answered", "interactive", None, 200, 6, 1),
        ("refused", "normal", None, 404, None, 0),
        ("hung_up", "normal", None, 200, None, 1),
    ]
    lines = log.read_text().splitlines()
    assert len(lines) == 4
    assert all(line.startswith("request.done id=") for line in lines)
    assert counted['skep_output_tokens_total{model="fake-model",class="normal",replica="r0"}'] == 4
    refused = 'model="unknown",class="normal",replica="",outcome="refused",status="404"'
    assert counted[f'skep_requests_total{{{refused},code="model_not_found"}}'] == 1
    assert counted['skep_slots{model="fake-model",replica="r0"}'] == 1


# Which headers of a client reach a replica

STAY = {b"origin"} | HOP_BY_HOP | {b"host", b"content-length", b"expect"}
token = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_.!", min_size=1, max_size=12).map(
    str.encode
)
name = (
    token
    | st.sampled_from(
        sorted(STAY | KEY_HEADERS | {b"content-type", b"origin", b"accept", b"cookie", b"x-skep-"})
    )
    | token.map(b"x-skep-".__add__)
)
value = st.lists(
    st.sampled_from([byte for byte in range(256) if byte not in b"\r\n\0"]), max_size=20
).map(bytes)
header = st.tuples(name, value) | st.tuples(
    st.just(b"connection"), st.lists(name, max_size=3).map(b" , ".join)
)


def named_by_connection(headers):
    values = b",".join(value for key, value in headers if key == b"connection")
    return {part.strip().lower() for part in values.split(b",")}


@given(st.lists(header, max_size=12), st.booleans())
@example(
    [
        (b"connection", b"x-a"),
        (b"connection", b"X-B"),
        (b"x-a", b"1"),
        (b"x-b", b"2"),
        (b"x-c", b"3"),
    ],
    False,
)
@example(
    [
        (b"connection", b"close, X-A,,"),
        (b"x-a", b"1"),
        (b"connection", b"\tx-b\t"),
        (b"x-b", b"2"),
    ],
    True,
)
def test_all_headers_but_those_of_this_hop_go_on_as_they_are_and_in_their_order(
    headers, hide_keys
):
    dropped = STAY | named_by_connection(headers) | (KEY_HEADERS if hide_keys else set())
    passed_on = [
        (key, value)
        for key, value in headers
        if key not in dropped and not key.startswith(b"x-skep-")
    ]
    sorted_headers = sort_headers(headers, hide_keys=hide_keys)
    assert sorted_headers.lines == b"".join(
        key + b": " + value + b"\r\n" for key, value in passed_on
    )
    assert sorted_headers.skep_headers == {
        key[7:]: value for key, value in headers if key.startswith(b"x-skep-")
    }


def test_a_client_cannot_hide_its_origin_by_naming_it_in_connection():
    """The check of web pages reads it from here."""
    headers = [(b"connection", b"origin, content-type, x-skep-agent"), (b"origin", b"https://a"),
               (b"content-type", b"text/plain"), (b"x-skep-agent", b"a")]  # fmt: skip
    sorted_headers = sort_headers(headers, hide_keys=False)
    assert (sorted_headers.origin, sorted_headers.content_type, sorted_headers.skep_headers) == (
        b"https://a",
        b"text/plain",
        {b"agent": b"a"},
    )
    assert sorted_headers.lines == b""
