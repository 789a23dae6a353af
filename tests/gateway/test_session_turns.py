"""Turns of sessions: their numbers, their pauses, and why a prompt was read again."""

import pytest

from skep.config.gateway_messages import ReplicaSpec
from skep.gateway.prompt_sketch import sketch_of
from skep.gateway.session_names import digest_text
from skep.gateway.sessions import EndedTurn, RequestSession, Sessions
from skep.store.database import GATEWAY_COLUMNS

COLUMNS = GATEWAY_COLUMNS[-8:]
REPLICAS = [ReplicaSpec(name, "m", f"http://{name}", 4) for name in ("r0", "r1")]
TEXT = b"every word of a long prompt that grows " * 2000
MINUTE = 60.0


class Agent:
    """An agent whose prompt grows by 1,000 tokens a turn, of four bytes each."""

    def __init__(self, sessions, session=7, conversation=11):
        self.sessions = sessions
        self.session = session
        self.conversation = conversation
        self.at = 1000.0
        self.prompt = 8000
        sessions.set_replicas(REPLICAS, 0.0)

    def turn(self, cached=None, *, pause_s=4.0, replica="r0", text=TEXT, reasoning=0):
        self.at += pause_s
        begun_at = self.at
        self.at += 2.0
        request = RequestSession(
            self.session,
            self.conversation,
            sketch_of(text[: 4 * self.prompt]),
            True,
            reasoning,
        )
        ended = EndedTurn(
            model="m",
            replica=replica,
            arrived_at=begun_at,
            ended_at=self.at,
            seen_at=self.at + 1e9,
            prompt_tokens=self.prompt,
            cached_tokens=cached,
            output_tokens=100,
            request=request,
        )
        columns = dict(zip(COLUMNS, self.sessions.ended(ended), strict=True))
        self.prompt += 1000
        return columns


@pytest.fixture
def agent():
    return Agent(Sessions())


def test_turns_go_on_with_the_numbers_of_an_earlier_gateway():
    agent = Agent(Sessions())
    agent.sessions.continue_turns({("m", digest_text(agent.conversation)): 12, ("m", "other"): 3})
    assert [agent.turn()["turn"] for _ in range(2)] == [13, 14]


def test_turns_that_came_before_the_store_was_read_are_counted_on(agent):
    agent.turn()
    agent.sessions.continue_turns({("m", digest_text(agent.conversation)): 12})
    assert agent.turn()["turn"] == 14


def test_numbers_of_another_model_are_not_taken(agent):
    agent.sessions.continue_turns({("n", digest_text(agent.conversation)): 12})
    assert agent.turn()["turn"] == 1


def test_turns_are_numbered_and_the_pause_before_each_is_told(agent):
    first = agent.turn()
    second = agent.turn(pause_s=30.0)
    assert (first["turn"], first["pause_s"]) == (1, None)
    assert (second["turn"], second["pause_s"]) == (2, pytest.approx(30.0))
    assert (second["session"], second["conversation"]) == ("00000007", "0000000b")
    assert second["tool_call"] is True


def test_a_turn_that_finds_its_prefix_is_warm_and_could_have_found_no_more(agent):
    agent.turn(0)
    assert agent.turn(8000)["cold"] is None
    third = agent.turn(9090)
    assert (third["cold"], third["possible_tokens"]) == (None, 9100)


def test_the_first_turn_is_cold_unless_another_session_began_like_it(agent):
    assert agent.turn(0)["cold"] == "first"
    assert Agent(agent.sessions, 8, 12).turn(7900)["cold"] is None


def test_a_turn_on_another_replica_says_so(agent):
    agent.turn(0)
    assert agent.turn(16, replica="r1")["cold"] == "moved"


def test_a_turn_after_the_start_of_its_engine_says_so(agent):
    agent.turn(0)
    agent.sessions.set_replicas(REPLICAS[1:], agent.at + 1)
    agent.sessions.set_replicas(REPLICAS, agent.at + 2)
    assert agent.turn(0)["cold"] == "restarted"
    assert agent.turn(0)["cold"] == "evicted"  # the engine runs since before the last turn


def test_a_prompt_that_changed_says_at_which_token(agent):
    agent.turn(0)
    cold = agent.turn(1990, text=TEXT[:8192] + b"X" + TEXT[8193:])
    assert (cold["cold"], cold["cold_at"]) == ("changed", 2048)


def test_a_change_near_the_end_does_not_explain_a_cold_turn(agent):
    agent.turn(0)
    changed = TEXT[:31_000] + b"X" + TEXT[31_001:]
    assert agent.turn(16, text=changed)["cold"] == "evicted"


def test_what_nothing_else_explains_was_evicted(agent):
    agent.turn(0)
    cold = agent.turn(16, pause_s=4 * MINUTE)
    assert (cold["cold"], cold["cold_at"], cold["pause_s"]) == ("evicted", None, 4 * MINUTE)


def test_without_cached_tokens_nothing_is_said(agent):
    agent.turn()
    second = agent.turn()
    assert (second["cold"], second["possible_tokens"]) == (None, 8100)


def test_thoughts_are_no_part_of_what_the_cache_could_have_held(agent):
    agent.turn(0, reasoning=90)
    assert agent.turn(8000)["possible_tokens"] == 8010


def test_a_compacted_prompt_is_a_change(agent):
    for cached in (0, 8000, 9000):
        agent.turn(cached)
    agent.prompt = 6000
    cold = agent.turn(500, text=b"a summary " * 9000)
    assert (cold["cold"], cold["cold_at"], cold["possible_tokens"]) == ("changed", 0, 6000)


def test_a_failed_request_does_not_break_the_chain(agent):
    agent.turn(0)
    names = agent.sessions.failed(RequestSession(7, 11))
    assert names == ("00000007", "0000000b", None, None, None, None, None, None)
    assert (agent.turn(8000)["turn"], agent.turn(0)["turn"]) == (2, 3)


def test_a_session_whose_system_prompt_changes_goes_on(agent):
    """A clock in it: by its beginning alone it would be a new conversation each time."""
    agent.turn(0)
    agent.conversation = 99
    second = agent.turn(0, text=b"12:04" + TEXT[5:])
    assert (second["turn"], second["cold"], second["cold_at"]) == (2, "changed", 0)


def test_a_sub_agent_of_the_session_is_a_conversation_of_its_own(agent):
    agent.turn(0)
    agent.conversation = 99
    sibling = agent.turn(6000, text=TEXT[:24_000] + b"another task " * 3000)
    assert (sibling["turn"], sibling["conversation"]) == (1, "00000063")


def test_the_conversation_not_heard_of_longest_is_forgotten():
    sessions = Sessions(remembered=2)
    agents = [Agent(sessions, number, number) for number in range(3)]
    for agent in agents:
        agent.turn(0)
    assert agents[0].turn(0)["turn"] == 1
    assert agents[2].turn(0)["turn"] == 2
    assert repr(sessions) == "<Sessions 2 conversations>"


def test_figures_of_a_session_cover_its_sub_agents(agent):
    agent.turn(0)
    agent.turn(8000, pause_s=6.0)
    sibling = Agent(agent.sessions, conversation=99)
    sibling.turn(0)
    (figures,) = agent.sessions.figures(10)
    assert (figures.conversations, figures.turns, figures.prompt_tokens) == (2, 3, 8000)
    assert figures.hit_rate == pytest.approx(8000 / 25_000)
    assert figures.possible_rate == pytest.approx(8100 / 25_000)
    assert (figures.cold, figures.pause_s) == ({"first": 2}, pytest.approx(6.0))
    assert figures.session == "00000007"


def test_figures_come_newest_first_and_no_more_than_wanted():
    sessions = Sessions()
    for number in range(5):
        Agent(sessions, number, number).turn(0)
    assert [figures.session for figures in sessions.figures(2)] == ["00000004", "00000003"]
