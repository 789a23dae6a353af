"""Swarm runs made up for tests: as rows without a store or a clock, and as they are stored."""

from random import Random

from skep.swarm.records import (
    Attempt,
    AttemptOutcome,
    Counts,
    Recorded,
    SwarmRun,
    SwarmRunState,
    Task,
    TaskEnding,
    TaskResult,
    Why,
)
from skep.swarm.store import SwarmSession, SwarmStore
from skep.swarm.summary import story_from

BEGAN = 1_794_000_000.0
ERROR = "<b>the engine</b> is out of memory"


def put_swarm_run(
    store, name, *, done=2, failed=1, left=0, outcome="done", url="http://10.1.2.3:8000", **config
):
    """One agent, a second a task, one after the other; what failed was rejected before."""
    swarm = SwarmStore(store)
    total = done + failed + left
    tasks = [
        Task(id=f"task-{n}", messages=({"role": "user", "content": "hi"},)) for n in range(total)
    ]
    run_fields = {"name": name, "url": url, "model": "qwen3-8b", "skep_version": "0.1"}
    run = swarm.begin(created_at=BEGAN, config=config, tasks=tasks, **run_fields)
    session = swarm.open_session(run, at=BEGAN, agents=1, endpoint={}, simulated=False)
    rows = []
    for n in range(done + failed):
        task = f"task-{n}"
        at = (n, n + 1)
        if n < done:
            rows.append(Recorded(attempt(task, 0, *at), result(task, *at, answer="fine")))
            continue
        error = {"error_kind": "http", "error": ERROR}
        last = attempt(
            task, 0, *at, number=2, why=Why.RETRY, outcome=AttemptOutcome.FAILED, **error
        )
        ending = {"ending": TaskEnding.FAILED, "answer": "half\x1b[31m", "tries": 2}
        rejected = attempt(task, 0, *at, outcome=AttemptOutcome.REJECTED)
        rows += [Recorded(rejected), Recorded(last, result(task, *at, **ending, **error))]
    swarm.record(run, rows)
    swarm.close_session(run, session, at=BEGAN + done + failed, outcome=outcome)
    return run


def session(number=1, started=BEGAN, ended=None, *, alive=False, outcome="done", error=None):
    session_fields = {
        "number": number,
        "started_at": started,
        "ended_at": ended,
        "outcome": outcome,
        "error": error,
    }
    return SwarmSession(
        **session_fields, agents=None, endpoint={"model": "m"}, simulated=False, alive=alive
    )


def attempt(task="a", agent=0, started=0.0, ended=1.0, **fields):
    defaults = {
        "session": 1,
        "number": 1,
        "why": Why.FIRST,
        "outcome": AttemptOutcome.DONE,
        "output_tokens": 10,
    } | fields
    return Attempt(
        task=task, agent=agent, started_at=BEGAN + started, ended_at=BEGAN + ended, **defaults
    )


def result(task="a", started=0.0, ended=1.0, **fields):
    defaults = {
        "ending": TaskEnding.DONE,
        "answer": "yes",
        "value": None,
        "error_kind": None,
        "error": None,
        "tries": 1,
        "prompt_tokens": 5,
        "output_tokens": 10,
    } | fields
    return TaskResult(task=task, started_at=BEGAN + started, ended_at=BEGAN + ended, **defaults)


def run_of(total, done, failed=0, **fields):
    if done + failed == total:
        state = SwarmRunState.DONE
    else:
        state = SwarmRunState.STOPPED
    defaults = {
        "kind": "map",
        "created_at": BEGAN,
        "name": "tasks.jsonl",
        "url": "http://127.0.0.1:9999",
        "model": "m",
        "config": {"tries": 4, "output": "/home/somebody/out.jsonl"},
        "skep_version": "0",
        "simulated": False,
        "state": state,
        "sessions": 1,
    } | fields
    return SwarmRun(id="20260101-000000-abcdef", counts=Counts(total, done, failed), **defaults)


def made_story(run, attempts, results, *, sessions=None, facts=(), now=BEGAN + 9999):
    end = max((attempt.ended_at for attempt in attempts), default=BEGAN)
    sessions = sessions or [session(ended=end)]
    return story_from(run, sessions, attempts, results, list(facts), now=now)


LOST = [
    AttemptOutcome.FAILED,
    AttemptOutcome.REJECTED,
    AttemptOutcome.SUPERSEDED,
    AttemptOutcome.CANCELLED,
]


def busy_story(tasks=60, lanes=12, seed=3, **fields):
    """Queues, retries, rejections, stragglers, two sessions and an endpoint that was down for a
    while.
    """
    rng = Random(seed)
    free = [0.0] * lanes
    attempts = []
    results = []
    for number in range(tasks):
        name = f"task-{number:03}"
        tries = 0
        outcome = None
        while outcome is not AttemptOutcome.DONE:
            tries += 1
            agent = min(range(lanes), key=free.__getitem__)
            begin = free[agent] + rng.random() * 0.2
            begin += 3600 if 20 < begin <= 3600 else 0
            lasted = 1.5 + 3 * rng.random()
            if rng.random() < 0.12 and tries < 3:
                outcome = rng.choice(LOST)
            else:
                outcome = AttemptOutcome.DONE
            if outcome is AttemptOutcome.DONE:
                fault = {}
            else:
                fault = {"error_kind": "timeout", "error": "no <answer> & more"}
            if tries == 1:
                why = Why.FIRST
            else:
                why = rng.choice([Why.RETRY, Why.STRAGGLER, Why.RESUMED])
            attempt_fields = {
                "session": 1 if begin < 3000 else 2,
                "number": tries,
                "why": why,
                "outcome": outcome,
                **fault,
            }
            attempt_fields |= {
                "queued_ms": 400 * rng.random(),
                "first_token_at": BEGAN + begin + 0.9,
                "prompt_tokens": 30,
            }
            attempt_fields |= {
                "output_tokens": int(20 * lasted),
                "replica": rng.choice(["r0", "r1"]),
            }
            attempts.append(attempt(name, agent, begin, begin + lasted, **attempt_fields))
            free[agent] = begin + lasted
        last = attempts[-1]
        result_fields = {"tries": tries, "output_tokens": last.output_tokens}
        if number % 29 == 7:
            result_fields = {
                "ending": TaskEnding.FAILED, "error_kind": "http_400",
                "error": "<script>alert(1)</script>", "answer": "<b>no</b>", "tries": 4,
            }  # fmt: skip
        results.append(result(name, 0, last.ended_at - BEGAN, **result_fields))
    attempts.sort(key=lambda attempt: attempt.started_at)
    first = [attempt.ended_at for attempt in attempts if attempt.session == 1]
    sessions = [session(1, BEGAN, max(first), outcome="stopped", error="the endpoint went away")]
    if any(attempt.session == 2 for attempt in attempts):
        sessions.append(session(2, BEGAN + 3620, max(attempt.ended_at for attempt in attempts)))
    facts = [
        (1, "endpoint", BEGAN + 8, {"up": False, "why": "connection refused"}),
        (1, "endpoint", BEGAN + 11, {"up": True}),
    ]
    failed = sum(result.ending is TaskEnding.FAILED for result in results)
    run = run_of(tasks, tasks - failed, failed, sessions=len(sessions), **fields)
    return made_story(run, attempts, results, sessions=sessions, facts=facts)
