"""Runs made up for the tests of their account and page: no clock, no store."""

from random import Random

from skep.swarm.records import Attempt, AttemptOutcome, Counts, SwarmRun, SwarmRunState, TaskEnding, TaskResult, Why
from skep.swarm.store import SwarmSession
from skep.swarm.summary import Rows, story_from

BEGAN = 1_700_000_000.0


def session(number=1, started=BEGAN, ended=None, *, alive=False, outcome="done", error=None):
    return SwarmSession(
        number=number,
        started_at=started,
        ended_at=ended,
        outcome=outcome,
        error=error,
        agents=None,
        endpoint={"model": "m"},
        simulated=False,
        alive=alive,
    )


def attempt(task="a", agent=0, started=0.0, ended=1.0, **other):
    known = {"session": 1, "number": 1, "why": Why.FIRST, "outcome": AttemptOutcome.DONE, "output_tokens": 10} | other
    return Attempt(task=task, agent=agent, started_at=BEGAN + started, ended_at=BEGAN + ended, **known)


def result(task="a", started=0.0, ended=1.0, **other):
    known = {
        "ending": TaskEnding.DONE,
        "answer": "yes",
        "value": None,
        "error_kind": None,
        "error": None,
        "tries": 1,
        "prompt_tokens": 5,
        "output_tokens": 10,
    } | other
    return TaskResult(task=task, started_at=BEGAN + started, ended_at=BEGAN + ended, **known)


def run_of(total, done, failed=0, **other):
    known = {
        "kind": "map",
        "created_at": BEGAN,
        "name": "tasks.jsonl",
        "url": "http://127.0.0.1:9999",
        "model": "m",
        "config": {"tries": 4, "output": "/home/somebody/out.jsonl"},
        "skep_version": "0",
        "simulated": False,
        "state": SwarmRunState.DONE if done + failed == total else SwarmRunState.STOPPED,
        "sessions": 1,
    } | other
    return SwarmRun(id="20260101-000000-abcdef", counts=Counts(total, done, failed), **known)


def rows_of(run, attempts, results, *, sessions=None, facts=(), model="m"):
    end = max((one.ended_at for one in attempts), default=BEGAN)
    return Rows(run, sessions or [session(ended=end)], attempts, results, list(facts), model)


def busy_story(tasks=60, lanes=12, seed=3, **other):
    """Queues, retries, rejections, stragglers, two sessions and an endpoint that was down for a while."""
    rng = Random(seed)
    free = [0.0] * lanes
    attempts, results = [], []
    for number in range(tasks):
        name = f"task-{number:03}"
        tries = 1
        while True:
            agent = min(range(lanes), key=free.__getitem__)
            begin = free[agent] + rng.random() * 0.2
            if begin > 20:
                begin += 0 if begin > 3600 else 3600
            lasted = 1.5 + 3 * rng.random()
            outcome = AttemptOutcome.DONE
            if rng.random() < 0.12 and tries < 3:
                outcome = rng.choice(
                    [
                        AttemptOutcome.FAILED,
                        AttemptOutcome.REJECTED,
                        AttemptOutcome.SUPERSEDED,
                        AttemptOutcome.CANCELLED,
                    ]
                )
            attempts.append(
                attempt(
                    name,
                    agent,
                    begin,
                    begin + lasted,
                    session=1 if begin < 3000 else 2,
                    number=tries,
                    why=Why.FIRST if tries == 1 else rng.choice([Why.RETRY, Why.STRAGGLER, Why.RESUMED]),
                    outcome=outcome,
                    queued_ms=1000 * 0.4 * rng.random(),
                    first_token_at=BEGAN + begin + 0.9,
                    output_tokens=int(20 * lasted),
                    prompt_tokens=30,
                    replica=rng.choice(["r0", "r1"]),
                    error_kind=None if outcome is AttemptOutcome.DONE else "timeout",
                    error=None if outcome is AttemptOutcome.DONE else "no answer in <60> s & more",
                )
            )
            free[agent] = begin + lasted
            if outcome is AttemptOutcome.DONE:
                break
            tries += 1
        last = attempts[-1]
        if number % 29 == 7:
            lost = {"ending": TaskEnding.FAILED, "error_kind": "http_400", "error": "<script>alert(1)</script>"}
            results.append(result(name, 0, last.ended_at - BEGAN, answer="<b>no</b>", tries=4, **lost))
        else:
            results.append(result(name, 0, last.ended_at - BEGAN, tries=tries, output_tokens=last.output_tokens))
    attempts.sort(key=lambda one: one.started_at)
    first = [one.ended_at for one in attempts if one.session == 1]
    sessions = [session(1, BEGAN, max(first), outcome="stopped", error="the endpoint went away")]
    if any(one.session == 2 for one in attempts):
        sessions.append(session(2, BEGAN + 3620, max(one.ended_at for one in attempts)))
    facts = [
        (1, "limit", BEGAN + 0.1, {"limit": 4, "why": "4 slots"}),
        (1, "limit", BEGAN + 3, {"limit": lanes, "why": "more pays"}),
        (1, "endpoint", BEGAN + 8, {"up": False, "why": "connection refused"}),
        (1, "endpoint", BEGAN + 11, {"up": True}),
        (2, "limit", BEGAN + 3620.1, {"limit": lanes, "why": "as before"}),
    ]
    failed = sum(one.ending is TaskEnding.FAILED for one in results)
    run = run_of(tasks, tasks - failed, failed, sessions=len(sessions), **other)
    return story_from(rows_of(run, attempts, results, sessions=sessions, facts=facts), now=BEGAN + 9999)
