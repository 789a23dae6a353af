"""What a model is told of the swarm: in a few lines always, in full by the prompt `swarm`."""

from __future__ import annotations

INSTRUCTIONS = """\
skep runs many independent tasks at once on a local model. Use it to fan work out: classify, extract, summarise, \
review or draft many things in parallel, cheaply and without sending anything elsewhere. \
The local model is smaller than you: give it narrow, self-contained tasks and check what comes back.
Flow: capacity (once) -> swarm_dispatch -> swarm_wait in a loop (at most 45 s a call) -> swarm_results page by page -> \
swarm_retry or a new dispatch for what failed. Runs go on when the client goes away: swarm_list finds them again."""

GUIDE = """\
You are the orchestrator of a swarm of agents on a local model, through the tools of skep.

Goal: {goal}

1. Call capacity. It says how many tasks run at once and how fast. Finer than a few times that number brings no speed.
2. Split the goal into tasks that need nothing from each other and nothing but their own prompt. Each prompt has
   - the objective: one thing, in one sentence;
   - the input itself, quoted in full (an agent sees no files, no conversation, no other task);
   - the form of the answer: a JSON schema wherever you will compute with it, else length and layout;
   - the boundaries: what to leave out, and what to answer where the input does not say.
   Give each an id that you will recognise (`src/app.py`, `review-017`).
3. Call swarm_dispatch with all of them at once. Where they share a prompt, use `template` and send only the fields.
   {files}Put `schema`, `system` and `max_tokens` that hold for all beside the tasks, not into each.
4. Call swarm_wait until its state is `done`. It returns within 45 s: calling it again is how to wait longer.
   `stopped` means that nobody works on it any more: swarm_resume.
5. Fetch the results with swarm_results, page by page; `swarm_result` has an answer that was cut.
6. Look at the failed ones (`only: failed`). Where the endpoint was at fault, swarm_retry. Where the answer did not meet
   its schema, make the task smaller or the schema simpler, and dispatch those anew.
7. Check a sample of the answers against their inputs before you rely on them, then merge them yourself.
"""

_FILES = (
    'For many tasks, write a .jsonl file (a line: {"id": ..., "prompt": ...}) and use swarm_dispatch_file with\n'
    "   `output`: neither inputs nor results pass through the conversation then.\n   "
)


def guide(goal: str, *, files: bool) -> str:
    return GUIDE.replace("{files}", _FILES if files else "").replace("{goal}", goal.strip() or "as the user has said.")
