"""The two models of a published write-up under mixed work, as stored runs with repeats that differ
by a little.

Facts of the write-up: TTFT of turn 1, the three turns, side tasks with time and verdict, speeds;
four levels each."""

from skep.quality.mixed_figures import PRIMARY, SIDE
from skep.store.records import LevelFact, Request
from skep.store.verdicts import Verdict, VerdictOutcome

# C: TTFT of turn 1 in ms, the turns in ms, tok/s of turn 1 and of all, and of each side task its
# seconds; below zero: not passed.
GPT_OSS = {
    1: (64, (844, 757, 1617), 127, 127, ()),
    2: (139, (2873, 3175, 1074), 49, 108, (4.5,)),
    3: (150, (3882, 2144, 1382), 45, 143, (5.5, 5.8)),
    5: (290, (6448, 973, 825), 34, 177, (5.5, -6.8, -6.8, 2.7)),
}
QWEN = {
    1: (135, (722, 624, 855), 80, 80, ()),
    2: (110, (1264, 1608, 1491), 34, 88, (3.1,)),
    3: (135, (1465, 1685, 572), 29, 105, (2.7, 3.1)),
    5: (191, (2252, 2084, 1948), 26, 137, (3.4, 3.8, -5.2, 0.9)),
}
REPEATS = (1.0, 1.02, 0.98)
GIB = 2**30
MEMORY = {"gpt-oss-20b": 14 * GIB, "qwen3-coder-30b": 20 * GIB}  # of a card of 24 GiB


def request(level, repeat, index, item, traffic, start, seconds, ttft_s, tokens, **fields):
    times = {
        "first_token_s": start + ttft_s,
        "last_token_s": start + seconds,
        "output_tokens": tokens,
    }
    return Request(
        level, repeat, index, item.id, start, start + seconds, traffic=traffic, **times, **fields
    )


def mixed_rows(model, repeats=REPEATS, levels=(1, 2, 3, 5), *, collapsed=False, dies_from=9):
    """Requests and verdicts of a run; each repeat is that much slower. `collapsed`: only turn 1
    passes.

    `dies_from`: the number of agents from which the conversation ends with a failure in turn 1.
    """
    rows = []
    verdicts = []
    for level in levels:
        ttft_ms, turns, tok_s, all_tok_s, sides = model[level]
        for repeat, slower in enumerate(repeats):
            start = began = 1000.0 * level + 100 * repeat
            # Tokens; those of the side tasks are what turns leave.
            tokens_left = round(all_tok_s * slower * sum(turns) / 1000)
            for turn, ms in enumerate(turns):
                ttft_s = slower * (ttft_ms if turn == 0 else 50) / 1000
                seconds = slower * ms / 1000
                tokens = max(1, round(tok_s * (seconds - ttft_s)))
                verdict = {
                    "session": 0,
                    "turn": turn,
                    "prompt": "Build it.",
                    "answer": f"answer of turn {turn + 1}",
                }
                if level >= dies_from and turn:
                    continue
                if level >= dies_from:
                    verdict |= {"error_kind": "http"}
                rows.append(
                    request(
                        level,
                        repeat,
                        turn,
                        PRIMARY[turn],
                        "primary",
                        start,
                        seconds,
                        ttft_s,
                        tokens,
                        **verdict,
                    )
                )
                is_wrong = level >= dies_from or (collapsed and turn)
                if is_wrong:
                    outcome = VerdictOutcome.WRONG
                else:
                    outcome = VerdictOutcome.PASSED
                verdicts.append(Verdict(level, repeat, turn, PRIMARY[turn].id, outcome))
                start += seconds
                tokens_left -= tokens
            for place, signed in enumerate(sides):
                seconds = slower * abs(signed)
                index = 1000 * (place + 1)
                if signed > 0 and not collapsed:
                    outcome = VerdictOutcome.PASSED
                else:
                    outcome = VerdictOutcome.WRONG
                verdict = {"prompt": "Do it.", "answer": f"answer of {SIDE[place].id}"}
                rows.append(
                    request(
                        level,
                        repeat,
                        index,
                        SIDE[place],
                        "side",
                        began,
                        seconds,
                        0.1,
                        tokens_left // len(sides),
                        **verdict,
                    )
                )
                verdicts.append(
                    Verdict(level, repeat, index, SIDE[place].id, outcome, "why" * (signed < 0))
                )
    return rows, verdicts


def store_mixed(store, model, name, at=1e9, *, simulated=False, **how):
    """Return the id of the stored run.

    Of the models of the write-up their memory is known, too.
    """
    about = {
        "url": "http://127.0.0.1:1/v1",
        "host": {},
        "engine": {"slots": 5, "context": 8192},
        "skep_version": "0",
    }
    config = {"concurrency": [1, 2, 3, 5], "repeats": len(how.get("repeats", REPEATS))}
    run_id = store.begin_run(
        kind="mixed",
        created_at=at,
        model=name,
        config=config,
        simulated=simulated,
        fingerprint=name,
        **about,
    )
    rows, verdicts = mixed_rows(model, **how)
    store.append_requests(run_id, rows)
    store.append_verdicts(run_id, verdicts)
    if name in MEMORY:
        held = {
            "used_bytes": MEMORY[name],
            "total_bytes": 24 * GIB,
            "gpus": 1,
            "source": "nvidia-smi",
        }
        store.append_level_facts(run_id, [LevelFact(5, 0, "memory", held)])
    store.end_run(run_id, at + 60, "done")
    return run_id
