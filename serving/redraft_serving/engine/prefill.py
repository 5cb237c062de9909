"""Reads prompts chunk by chunk between rounds, so that a long one never stalls the rows that generate.

One prompt is read at a time; the others wait for it in the queue, with their slots not yet given.
"""

from __future__ import annotations

import torch

from redraft_serving.engine.forward.decoder import read
from redraft_serving.engine.planning import Planner
from redraft_serving.engine.prefix import PrefixCache
from redraft_serving.engine.round import Rounds
from redraft_serving.engine.rows import Row

DRAFTLESS_SHARE = 8
"""While the policy decodes plainly, the draft reads every so-many-th prompt, so that a probe can follow."""


class Prefill:
    """Reads the prompts of rows that have just got their slots."""

    def __init__(self, rounds: Rounds, planner: Planner, prefixes: PrefixCache, chunk: int) -> None:
        self.rounds, self.planner, self.prefixes, self.chunk = rounds, planner, prefixes, chunk
        self._begun = 0

    def begin(self, row: Row) -> None:
        """Take over what is known of the prompt's beginning."""
        row.length = row.cached_tokens = self.prefixes.restore(
            self.rounds.cache, row.slot, row.tokens, _key(row)
        )
        self._begun += 1
        row.draft_reads = self.planner.wants_draft(row) or self._begun % DRAFTLESS_SHARE == 0
        self.rounds.proposer.admit(row)

    def read(self, row: Row) -> bool:
        """Read one chunk; True once all is read but what the first round feeds, by the draft too if it reads.

        Chunks end at multiples of their size, whoever else generates: rounding then depends on nobody.
        """
        end = len(row.tokens) - 1
        chunk = row.tokens[row.length : min(end, (row.length // self.chunk + 1) * self.chunk)]
        if chunk:
            cache, target = self.rounds.cache, self.rounds.target
            tokens = torch.tensor([chunk], device=cache.device)
            logits = read(target, cache, [row.slot], tokens, [row.length], keep=1)
            row.length += len(chunk)
            row.rotten |= not bool(logits.sum().isfinite())
        read_by_draft = self.rounds.proposer.catch_up(row, self.chunk) if row.draft_reads else 0
        # The draft may have to begin earlier than the target: after a swap nothing of its own is known.
        if row.length < end or (read_by_draft and row.draft_length < end - 1):
            return False
        self.keep(row)
        return True

    def keep(self, row: Row) -> None:
        """Remember what both caches hold of a row, for rows that begin alike; nothing of a rotten one."""
        if row.rotten:
            return
        self.prefixes.keep(self.rounds.cache, row.slot, row.tokens[: row.length], _key(row))
        self.rounds.proposer.keep(row)


def _key(row: Row) -> tuple[str, str]:
    """Domains find only their own beginnings: by `cached_tokens` and by the time to the first token, a client
    of one would learn what the others have asked.
    """
    return "target", row.request.domain
