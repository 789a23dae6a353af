"""A tuning in words: from where to where, what made it, what did not, and how far one may trust it."""

from dataclasses import replace

from skep.records import Interval
from skep.tuner.explain import explain
from skep.tuner.explain_limits import Standing
from skep.tunings import Aim, Config, CurvePoint, Decision, Failure, Knob, Stage, Tuning

START = {"graphs": False, "kv": "auto", "mtp": 0, "slots": 2, "threads": 1}
BASE = Config.of(START)
TUNING = Tuning(
    id="t1", created_at=0.0, model="m", engine="vllm", rig="2x rtx-3090", aim=Aim("effective_tok_s", 4), budget_s=7200,
    seed=0, simulated=False, baseline=BASE, knobs=tuple(Knob(name, name, (1, 2)) for name in START), base={}, host={},
    skep_version="0",
)  # fmt: skip


def around(value, share=0.01):
    return Interval(value * (1 - share), value, value * (1 + share))


class Ladder:
    """Stages one after the other, each against the best of its moment."""

    def __init__(self, figure=25.0):
        self.best, self.figure = BASE, figure
        self.stages = [Stage(0, (), BASE, Decision.BASELINE, "2 starts", around(figure), seconds=100)]

    def tried(self, decision, ratio=None, share=0.01, why="", predicted=None, failure=None, **turned):
        config = self.best.turned(turned)
        stage = Stage(
            len(self.stages), config.changes_from(self.best), config, decision, why,
            None if ratio is None else around(self.figure * ratio), None if ratio is None else around(ratio, share),
            predicted, seconds=200, failure=failure,
        )  # fmt: skip
        self.stages.append(stage)
        if decision is Decision.ACCEPTED:
            self.best, self.figure = config, self.figure * ratio
        return self


def words(ladder, tuning=TUNING, **standing):
    return explain(tuning, ladder.stages, Standing(**standing))


def the(lines, part):
    (found,) = [line for line in lines if part in line]
    return found


def climb():
    return (
        Ladder()
        .tried(Decision.ACCEPTED, 1.72, graphs=True, predicted=1.7)
        .tried(Decision.SAME, 1.004, kv="fp8", predicted=1.25)
        .tried(Decision.ACCEPTED, 1.4, mtp=3, predicted=1.5)
        .tried(Decision.WORSE, 0.8, slots=1, predicted=0.7)
        .tried(Decision.ACCEPTED, 1.03, slots=4, predicted=0.9)
    )


def test_the_first_sentence_says_from_where_to_where_with_intervals():
    assert words(climb())[0] == (
        "from 25.0 (24.8 to 25.2) to 62.0 (61.4 to 62.6) tok/s, 2.48 times (2.44 to 2.52) by the 3 steps multiplied; "
        "5 changes decided in 18 min 20 s of measuring"
    )


def test_the_steps_that_made_most_of_it_are_named_with_their_share_of_the_gain():
    lines = words(climb())
    assert the(lines, "brought 1.72") == "graphs off → on brought 1.72 times (1.70 to 1.74), 60 % of the gain"
    assert the(lines, "brought 1.40").startswith("mtp 0 → 3")
    assert the(lines, "the other") == "the other step, slots 2 → 4: 1.03 times (1.02 to 1.04)"
    four = climb().tried(Decision.ACCEPTED, 1.01, threads=2)
    assert the(words(four), "the other") == "the other 2 steps together: 1.04 times (1.03 to 1.06)"


def test_a_single_step_is_all_of_it():
    assert "it was one step: graphs off → on" in words(Ladder().tried(Decision.ACCEPTED, 1.7, graphs=True))


def test_what_was_not_distinguishable_comes_with_the_gain_that_is_excluded_and_never_as_no_effect():
    ladder = climb().tried(Decision.SAME, 0.99, slots=8).tried(Decision.SAME, 1.02, slots=3)
    ladder.tried(Decision.SAME, 1.0, slots=8, threads=2)
    assert the(words(ladder), "told from nothing") == (
        "not to be told from nothing: kv fp8 (at most +1.4 %), slots 3 or 8 (at most +3.0 %), 1 turn of several knobs "
        "at once (at most +1.0 %); each `at most` is the end of a 95 % interval"
    )


def test_losses_and_what_was_faster_but_not_taken_are_told():
    ladder = climb().tried(Decision.OVER_LIMIT, 1.2, why="beyond ttft=1s", slots=8)
    ladder.tried(Decision.ANSWERS_WORSE, 1.1, why="20 of 96 right against 80", kv="q4")
    lines = words(ladder, replace(TUNING, aim=Aim("effective_tok_s", 4, slo="ttft=1s")))
    assert the(lines, "lost:") == "lost: slots 2 → 1 -20.0 % (-20.8 to -19.2)"
    assert the(lines, "over the SLO") == "over the SLO: slots 4 → 8: beyond ttft=1s"
    assert "20 of 96 right against 80" in the(lines, "answers worse")
    assert the(lines, "within ttft=1s") == "within ttft=1s: 1 change turned down for it"


def test_a_dead_end_is_told_with_its_line_its_remedy_and_the_way_out_that_was_found():
    oom = Failure("out-of-memory", "no room", "CUDA out of memory", "fewer slots")
    ladder = Ladder().tried(Decision.FAILED, failure=oom, graphs=True)
    assert the(words(ladder), "dead end") == (
        "dead end: graphs off → on ran out of memory: no room (CUDA out of memory); fewer slots"
    )
    ladder.tried(Decision.ACCEPTED, 1.6, graphs=True, slots=1)
    assert the(words(ladder), "dead end:").endswith("; it ran with slots 2 → 1: accepted, +60.0 % (+58.4 to +61.6)")
    assert "stage 2 turned graphs and slots together: graphs was a dead end alone; slots was not tried alone" in words(
        ladder
    )


def test_dead_ends_with_one_remedy_are_told_together():
    first, second = (Failure("out-of-memory", f"needs {gib} GiB", remedy="fewer slots") for gib in (21, 22))
    ladder = Ladder().tried(Decision.FAILED, failure=first, graphs=True).tried(Decision.FAILED, failure=second, mtp=3)
    ladder.tried(Decision.SAME, 1.0, mtp=3, slots=1)
    assert the(words(ladder), "dead ends") == (
        "2 dead ends, ran out of memory: graphs off → on; mtp 0 → 3, which ran with slots 2 → 1: not distinguishable, "
        "+0.0 % (-1.0 to +1.0); of the first: needs 21 GiB; fewer slots"
    )


def test_changes_accepted_together_without_trying_each_are_not_credited_one_by_one():
    lines = words(Ladder().tried(Decision.ACCEPTED, 1.1, kv="fp8", slots=4))
    assert "stage 1 turned kv and slots together: what each of them brings was not measured" in lines


def test_an_accepted_step_that_failed_later_is_no_step():
    """The climb went back: what it brought must not be counted."""
    ladder = climb()
    dead = ladder.stages[-1]
    back = replace(dead, number=6, decision=Decision.FAILED, failure=Failure("hang", "silent"), ratio=None)
    ladder.stages.append(back)
    assert "2.41 times (2.37 to 2.44) by the 2 steps multiplied" in words(ladder)[0]


def test_what_was_foreseen_is_held_against_what_was_measured():
    lines = words(climb())
    assert "the planner foresaw the direction of 3 of the 4 changes that had a clear one" in lines
    assert the(lines, "farthest off") == (
        "it was farthest off with kv auto → fp8: 1.25 times foreseen, 1.00 (0.99 to 1.01) measured"
    )
    simulated = words(climb(), replace(TUNING, simulated=True))
    assert not [line for line in simulated if "foresaw" in line or "foreseen" in line], "the rig is the planner's own"


def test_what_was_not_tried_is_told_with_the_reason():
    lines = words(climb())
    assert the(lines, "never decided about") == (
        "never decided about: threads: refused beforehand, or too little was expected of it"
    )
    short = replace(TUNING, budget_s=1150.0)
    late = words(climb().tried(Decision.UNDECIDED, slots=8), short)
    assert "threads: time ran out (21 min 40 s of 19 min 10 s), or" in the(late, "never decided")
    assert the(words(climb().tried(Decision.UNDECIDED, slots=8)), "not finished") == (
        "not finished, as time ran out: slots 4 → 8"
    )
    target = replace(TUNING, aim=Aim("effective_tok_s", 4, target=60.0))
    assert "the target was reached before" in the(words(climb(), target), "never decided")


def test_a_climb_that_was_broken_off_says_so_first_and_blames_nothing_else():
    lines = words(climb(), state="interrupted", reason="interrupted by Ctrl-C", measured_s=7000.0)
    assert lines[0] == "it was broken off (interrupted by Ctrl-C): this is how far it came"
    assert "5 changes decided in 1 h 56 min of measuring" in lines[1], "what only sorted took time as well"
    assert the(lines, "never decided about").endswith("threads: it was broken off before")
    running = words(climb(), state="running")
    assert running[0] == "it still climbs: this is how far it came"
    assert the(running, "never decided about").endswith("threads: not reached yet")
    assert words(climb(), state="ended", reason="the budget is spent") == words(climb())


def test_readings_that_decided_nothing_have_the_last_word_on_the_gain():
    """What is accepted for looking good looks better than it is; the curve is measured afterwards."""
    best = climb().best
    told = {(4, BASE): 25.0, (4, best): 55.0, (8, BASE): 30.0, (8, best): 90.0}
    curve = [CurvePoint(c, config, around(figure)) for (c, config), figure in told.items()]
    assert words(climb(), curve=curve)[1].endswith("decided nothing: 55.0 against 25.0 tok/s, 2.20 times")
    assert not [one for one in words(climb(), curve=curve[2:]) if "once more" in one], "another C is another load"
    other = replace(TUNING, aim=Aim("task_tok_s", 4))
    assert not [one for one in words(climb(), other, curve=curve) if "once more" in one], "that is another figure"


def test_figures_are_bound_to_their_load():
    lines = words(climb(), replace(TUNING, aim=Aim("task_tok_s", 1, output_tokens=16), simulated=True))
    assert lines[0].startswith("SIMULATED")
    assert "tok/s for each agent" in lines[1]
    assert "all this holds for 512 in, 16 out, C=1 on 2x rtx-3090" in the(lines, "holds for")
    assert the(lines, "answers of 16 tokens are short")
    assert the(lines, "one agent alone")


def test_answers_taken_on_trust_are_named():
    ladder = Ladder().tried(Decision.ACCEPTED, 1.2, kv="fp8", why="+20 %; that it is not worse could not be shown")
    assert the(words(ladder), "answers are as good") == ("that answers are as good was not shown for: kv auto → fp8")


def test_a_climb_that_found_nothing_says_so_without_calling_the_baseline_best():
    line = words(Ladder().tried(Decision.SAME, 1.0, kv="fp8"))[0]
    assert line.startswith(
        "nothing that was tried was shown to be better than the baseline's 25.0 (24.8 to 25.2) tok/s"
    )


def test_a_baseline_without_a_figure_is_all_there_is_to_say():
    nothing = "nothing was tuned, as there is no figure of the baseline"
    assert explain(TUNING, []) == [nothing]
    dead = Stage(0, (), BASE, Decision.FAILED, "did not start: no driver")
    assert explain(TUNING, [dead]) == [
        "nothing was tuned, as there is no figure of the baseline: did not start: no driver"
    ]
