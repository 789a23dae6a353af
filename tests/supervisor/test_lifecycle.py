"""A replica's life, decided without a clock."""

import pytest

from skep.supervisor.lifecycle import Lifecycle, LifecycleAction, ReplicaState, RestartPolicy

POLICY = RestartPolicy(
    first_delay_s=1.0,
    max_delay_s=8.0,
    failures_before_ready=3,
    failures_after_ready=5,
    stable_s=60,
)


def started():
    life = Lifecycle(POLICY)
    assert life.start(0.0) is LifecycleAction.SPAWN
    return life


def ready_life():
    life = started()
    assert life.addressed("http://e") is LifecycleAction.PROBE
    assert life.healthy(1.0) is LifecycleAction.WARM_UP
    assert not life.serving
    assert life.warmed(2.0) is LifecycleAction.WATCH
    assert (life.state, life.serving, life.due_at) == (ReplicaState.READY, True, None)
    return life


def test_a_dead_engine_is_started_again_after_growing_pauses():
    life = ready_life()
    now = 10.0
    pauses = []
    for _ in range(4):
        life.exited("boom", now)
        assert not life.serving
        pauses.append(life.due_at - now)
        now = life.due_at
        assert life.tick(now - 0.01) is None
        assert life.tick(now) is LifecycleAction.SPAWN
    assert pauses == [1.0, 2.0, 4.0, 8.0]
    assert life.restarts == 4


def test_a_replica_that_is_given_up_says_why():
    life = started()
    for n in range(3):
        life.exited(f"CUDA out of memory ({n})", 1.0)
        if life.due_at is not None:
            life.tick(life.due_at)
    assert (life.state, life.why) == (ReplicaState.FAILED, "CUDA out of memory (2)")


def test_an_end_that_would_come_again_leads_to_a_start_only_on_request():
    """A missing file, an occupied port: the second start would fail like the first."""
    life = started()
    life.exited("port 9 is in use", 0.5, final=True)
    assert life.state is ReplicaState.FAILED
    assert life.restart(9.0) is LifecycleAction.SPAWN
    assert life.state is ReplicaState.STARTING


def test_failures_before_a_long_good_time_are_forgotten():
    life = ready_life()
    for _ in range(4):
        life.exited("boom", 10.0)
        life.tick(life.due_at)
    life.addressed("http://e")
    life.healthy(20.0)
    life.warmed(20.0)
    life.exited("boom", 100.0)
    assert life.due_at == 101.0


def test_an_engine_that_is_not_healthy_in_time_is_ended_with_that_reason():
    life = started()
    assert life.tick(POLICY.start_deadline_s) is LifecycleAction.TERMINATE
    life.exited("killed by signal 15", 181.0)
    assert life.state is ReplicaState.BACKOFF
    assert life.why == "not healthy within 180 s"


def test_a_restart_that_was_asked_for_is_no_failure():
    life = ready_life()
    assert life.restart(4.0) is LifecycleAction.TERMINATE
    life.exited("exit code 0", 5.0)
    assert life.tick(5.0) is LifecycleAction.SPAWN
    assert (life.restarts, life.why) == (1, None)


@pytest.mark.parametrize(
    ("exit_text", "by_itself", "why"),
    [
        ("killed by signal 15", False, "the warm-up generation failed: HTTP 500"),
        ("CUDA error at layer 3 (exit code 42)", True, "CUDA error at layer 3 (exit code 42)"),
    ],
)
def test_a_failed_warm_up_keeps_its_reason_unless_the_engine_has_a_better_one(
    exit_text, by_itself, why
):
    """The last lines of an engine that died by itself say more than our broken connection."""
    life = started()
    life.addressed("http://e")
    life.healthy(1.0)
    assert life.warm_up_failed("HTTP 500") is LifecycleAction.TERMINATE
    life.exited(exit_text, 2.0, by_itself=by_itself)
    assert life.why == why


def test_a_stop_while_it_waits_for_cards_starts_nothing():
    life = started()
    life.must_wait()
    assert (life.stop(), life.state) == (None, ReplicaState.STOPPED)


def test_a_stop_while_it_waits_for_a_restart_starts_nothing():
    life = ready_life()
    life.exited("boom", 10.0)
    assert life.stop() is None
    assert life.state is ReplicaState.STOPPED
    assert life.tick(1000.0) is None


def test_events_that_come_after_a_stop_change_nothing():
    life = ready_life()
    life.stop()
    assert life.healthy(3.0) is None
    assert life.warmed(3.0) is None
    assert life.addressed("http://x") is None


def test_one_that_has_to_wait_for_its_cards_is_not_late():
    life = started()
    life.must_wait()
    assert (life.state, life.due_at, life.restart(1.0)) == (ReplicaState.WAITING, None, None)
    assert life.granted(1000.0) is LifecycleAction.SPAWN
    assert life.granted(1000.0) is None
    assert (life.state, life.due_at) == (ReplicaState.STARTING, 1000.0 + POLICY.start_deadline_s)
