"""Continuous batching with a prefix cache: a prompt reuses the blocks that earlier ones left,
answers fill the pool, and a sequence that does not fit is preempted and computed again.

As in vLLM: a prompt is admitted when there is room for all of its blocks, an answer takes blocks
as it grows, and where no block is left the sequence that came last gives its blocks back. With KV
in RAM, blocks that the card has lost are copied back, one prompt after the other.

What linear layers keep instead of KV is in `kept_states`; the two states that a running sequence
has take blocks of the pool, too.
"""

from __future__ import annotations

import math

from skep.planner.batching import BatchPass, PassResult, Sequence, SimulatedReplica
from skep.planner.kept_states import KeptStates
from skep.planner.prefix_cache import Blocks, PrefixCache
from skep.planner.step import StepModel

BLOCK_TOKENS = 16  # vLLM's block size
RUNNING_STATES = 2  # of a sequence that runs: the one it computes, and the last one that is kept


class KvTier:
    """KV in RAM: how many tokens it holds, and how many a second are copied back to the card."""

    def __init__(self, tokens: float, tokens_per_s: float) -> None:
        self.tokens = tokens
        self.tokens_per_s = tokens_per_s


class CacheCounts:
    """Totals so far: tokens of prompts, and preemptions."""

    def __init__(self) -> None:
        self.prompt_tokens = 0.0
        self.hit_tokens = 0.0  # on the card
        self.ram_tokens = 0.0  # copied back from RAM
        self.preemptions = 0


class CachingReplica(SimulatedReplica):
    """A simulated replica with a prefix cache, which knows blocks by the names in sequences."""

    def __init__(
        self,
        step: StepModel,
        slots: int,
        pool_tokens: float,
        chunk_tokens: int,
        *,
        block_tokens: int = BLOCK_TOKENS,
        state_blocks: int = 0,
        ram: KvTier | None = None,
    ) -> None:
        """`state_blocks`: that a kept state of linear layers takes; 0: the model has none."""
        super().__init__(step, slots, pool_tokens, chunk_tokens)
        self.block_tokens = block_tokens
        self.counts = CacheCounts()
        pool_blocks = max(1, int(pool_tokens // block_tokens))
        ram_blocks = 0
        if ram is not None:
            ram_blocks = int(ram.tokens // block_tokens)
        self.cache = PrefixCache(pool_blocks, ram_blocks)
        self.states = KeptStates(self.cache, state_blocks)
        self._ram = ram
        # Prompts whose KV is on its way from RAM, with the seconds that this takes.
        self._loading: list[tuple[Sequence, float]] = []
        # Prompt tokens of admitted sequences behind their last named block.
        self._tail_tokens = 0.0
        self._decoding_prompts = 0.0  # prompt tokens of the sequences that decode

    @property
    def running(self) -> int:
        return super().running + len(self._loading)

    @property
    def kv_tokens(self) -> float:
        return float(self.cache.used_blocks * self.block_tokens)

    def hold(self, blocks: Blocks) -> None:
        """Put the blocks of an earlier prompt into the cache, as if it had been read."""
        pass_blocks = max(1, self.chunk_tokens // self.block_tokens)
        self.states.keep_every(pass_blocks, blocks, 0)
        last_state = self.states.after(blocks, len(blocks))
        kept_blocks = (*last_state, *blocks)
        self.cache.use(kept_blocks)
        self.cache.keep_in_ram(kept_blocks)
        self.cache.release(kept_blocks)

    def next_pass(self, at_most: int = 1 << 30) -> BatchPass | None:
        batch_pass = super().next_pass(at_most)
        if batch_pass is None:
            if not self._loading:
                return None
            # Nothing is to be computed until the first prompt has come from RAM.
            seconds = max(1e-6, self._loading[0][1])
            return BatchPass(1, seconds, 0, (), 0.0)
        if batch_pass.steps > 1:
            steps = min(batch_pass.steps, self._steps_with_room(batch_pass))
            if steps < batch_pass.steps:
                return super().next_pass(steps)
        return batch_pass

    def finish(self, done: BatchPass) -> PassResult:
        self._copy_back(done.seconds)
        result = super().finish(done)
        resumed = []
        started = []
        for sequence in result.started:
            if sequence.has_begun:
                resumed.append(sequence)
            else:
                started.append(sequence)
            sequence.has_begun = True
            self._keep_states_of_passes(sequence)
            self.cache.keep_in_ram((*sequence.blocks, *sequence.state))
        preempted = self._make_room()
        return PassResult(tuple(started), result.ended, tuple(preempted), tuple(resumed))

    def cancel(self, sequence: Sequence) -> None:
        if sequence.is_released:
            return
        sequence.answer_blocks = ()  # it will not be written to its end
        if self._drop_loading(sequence):
            # A prompt on its way from RAM is computed no more than one that is being read.
            self.filling.append(sequence)
        was_filling = sequence in self.filling
        super().cancel(sequence)
        if was_filling:
            self._forget_uncomputed(sequence)

    # Called by SimulatedReplica

    def _has_room(self, sequence: Sequence) -> bool:
        unread = sum(filling.prompt_left for filling in self.filling)
        if unread >= self._budget():
            return False  # its first tokens would have to wait for those of others anyway
        named_blocks = self.cache.needs(sequence.blocks)
        tail_tokens = self._tail_of(sequence)
        tail_blocks = math.ceil(tail_tokens / self.block_tokens)
        running_state = RUNNING_STATES * self.states.blocks_each
        needed_blocks = named_blocks + tail_blocks + running_state + 1
        return needed_blocks <= self.cache.free_blocks

    def _take_in(self, sequence: Sequence) -> None:
        prompt_tokens = sequence.cached + sequence.prompt
        blocks = sequence.blocks
        held_blocks, ram_blocks = self.states.hits_of(blocks)
        if (held_blocks + ram_blocks) * self.block_tokens >= prompt_tokens:
            # The last token is always computed: its result is the first one of the answer.
            if ram_blocks:
                ram_blocks -= 1
            else:
                held_blocks -= 1
        self.states.touch(blocks, held_blocks + ram_blocks)
        sequence.state = self.states.after(blocks, len(blocks))
        self.cache.use((*blocks, *sequence.state))
        sequence.cached = float((held_blocks + ram_blocks) * self.block_tokens)
        sequence.prompt = sequence.prompt_left = prompt_tokens - sequence.cached
        self._tail_tokens += self._tail_of(sequence)
        self._note_unnamed()
        self.counts.prompt_tokens += prompt_tokens
        self.counts.hit_tokens += held_blocks * self.block_tokens
        self.counts.ram_tokens += ram_blocks * self.block_tokens
        if ram_blocks and self._ram is not None:
            seconds = ram_blocks * self.block_tokens / self._ram.tokens_per_s
            self._loading.append((sequence, seconds))
        else:
            self.filling.append(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        self._tail_tokens -= self._tail_of(sequence)
        answer_blocks = self._full_answer_blocks(
            sequence, sequence.cached + sequence.prompt + sequence.output
        )
        if sequence.has_begun and answer_blocks:
            all_blocks = (*sequence.blocks, *answer_blocks)
            answer_blocks = (*self.states.after(all_blocks, len(all_blocks)), *answer_blocks)
            self.cache.use(answer_blocks)
            self.cache.keep_in_ram(answer_blocks)
        else:
            answer_blocks = ()
        self.cache.release((*sequence.state, *sequence.blocks, *answer_blocks))
        self._note_unnamed()

    def _enter_batch(self, sequence: Sequence) -> None:
        super()._enter_batch(sequence)
        self._decoding_prompts += sequence.cached + sequence.prompt

    def _leave_batch(self, sequence: Sequence) -> None:
        super()._leave_batch(sequence)
        self._decoding_prompts -= sequence.cached + sequence.prompt

    # Inside

    def _keep_states_of_passes(self, sequence: Sequence) -> None:
        """Keep the states where the passes over a prompt ended."""
        found_blocks = int(sequence.cached // self.block_tokens)
        pass_blocks = max(1, self.chunk_tokens // self.block_tokens)
        self.states.keep_every(pass_blocks, sequence.blocks, found_blocks)

    def _forget_uncomputed(self, sequence: Sequence) -> None:
        """Drop the blocks of a prompt that was not read to its end."""
        computed_blocks = self._computed_blocks(sequence)
        self.cache.forget(sequence.blocks[computed_blocks:])
        self.cache.forget(sequence.state)

    def _budget(self) -> float:
        decoded_each = 1 + self.step.depth
        left_tokens = self.chunk_tokens - self.decoding * decoded_each
        return max(16.0, left_tokens)

    def _tail_of(self, sequence: Sequence) -> float:
        """Return how many tokens of a sequence's prompt lie behind its last named block."""
        prompt_tokens = sequence.cached + sequence.prompt
        named_tokens = len(sequence.blocks) * self.block_tokens
        return max(0.0, prompt_tokens - named_tokens)

    def _computed_blocks(self, sequence: Sequence) -> int:
        prompt_tokens = sequence.cached + sequence.prompt
        computed_tokens = prompt_tokens - sequence.prompt_left
        computed_blocks = int(computed_tokens // self.block_tokens)
        return min(len(sequence.blocks), computed_blocks)

    def _full_answer_blocks(self, sequence: Sequence, tokens: float) -> Blocks:
        """Return the blocks of an answer that are full once the sequence has `tokens` in all."""
        all_blocks = int(tokens // self.block_tokens)
        full_blocks = max(0, all_blocks - len(sequence.blocks))
        return sequence.answer_blocks[:full_blocks]

    def _note_unnamed(self) -> None:
        answer_tokens = max(0.0, self._context - self._decoding_prompts)
        tokens = max(0.0, self._tail_tokens + answer_tokens)
        token_blocks = math.ceil(tokens / self.block_tokens)
        half_full_blocks = self.running // 2  # the last one of a sequence
        # The kept one of the two states of a sequence has a name.
        unnamed_states = self.running * (RUNNING_STATES - 1)
        state_blocks = unnamed_states * self.states.blocks_each
        self.cache.set_unnamed(token_blocks + half_full_blocks + state_blocks)

    def _steps_with_room(self, batch_pass: BatchPass) -> int:
        """Return how many steps of a pass can run: until the free blocks are used up, or until the
        next prompt has come from RAM.
        """
        steps = batch_pass.steps
        step_s = batch_pass.seconds / batch_pass.steps
        if self._loading and step_s > 0:
            steps = min(steps, max(1, math.ceil(self._loading[0][1] / step_s)))
        growth = batch_pass.decoding * batch_pass.tokens_each
        if growth:
            room = self.cache.free_blocks * self.block_tokens
            steps_with_room = max(1, int(room // growth))
            return min(steps, steps_with_room)
        return steps

    def _copy_back(self, seconds: float) -> None:
        """Copy prompts from RAM for `seconds`, one after the other, as there is one link."""
        while self._loading:
            sequence, left_s = self._loading[0]
            if left_s > seconds + 1e-9:
                self._loading[0] = (sequence, left_s - seconds)
                return
            del self._loading[0]
            self.filling.append(sequence)
            seconds -= left_s

    def _drop_loading(self, sequence: Sequence) -> bool:
        entries = [
            (loading, left_s) for loading, left_s in self._loading if loading is not sequence
        ]
        was_loading = len(entries) < len(self._loading)
        self._loading = entries
        return was_loading

    def _make_room(self) -> list[Sequence]:
        """Preempt the sequences that came last until the others have room; one always stays."""
        preempted = []
        self._note_unnamed()
        while self.cache.free_blocks < 0 and self.decoding + len(self.filling) > 1:
            preempted.append(self._preempt())
            self._note_unnamed()
        return preempted

    def _preempt(self) -> Sequence:
        """Return the sequence that gave up its place: the last that fills, or else the one that
        began to decode last. It waits again, before all others.
        """
        self.counts.preemptions += 1
        if self.filling:
            sequence = self.filling.pop()
            self._tail_tokens -= self._tail_of(sequence)
            self.cache.release((*sequence.state, *sequence.blocks))
            self._forget_uncomputed(sequence)
        else:
            sequence = max(self._ends, key=lambda entry: entry[1])[2]
            self._preempt_decoding(sequence)
        self.waiting.appendleft(sequence)
        return sequence

    def _preempt_decoding(self, sequence: Sequence) -> None:
        """Take a sequence out of the batch: what it has answered is a part of its prompt now."""
        context = self._context_of(sequence)
        answered_tokens = context - sequence.cached - sequence.prompt
        self._stop_decoding(sequence)
        self._tail_tokens -= self._tail_of(sequence)
        full_blocks = self._full_answer_blocks(sequence, context)
        self.cache.use(full_blocks)
        sequence.blocks = (*sequence.blocks, *full_blocks)
        sequence.answer_blocks = sequence.answer_blocks[len(full_blocks) :]
        sequence.prompt = sequence.prompt_left = context
        sequence.cached = 0.0
        sequence.output = max(1.0, sequence.output - answered_tokens)
        self.cache.release((*sequence.state, *sequence.blocks))
