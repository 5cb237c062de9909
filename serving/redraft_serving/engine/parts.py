"""What an engine is made of, put together from a pair of models and the settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from redraft_models.loading import ModelPair

from redraft_serving.engine.cache import SlotCache
from redraft_serving.engine.draft_model import DraftModelProposer
from redraft_serving.engine.forward.choose import choose_decoder
from redraft_serving.engine.interface import MemoryReport
from redraft_serving.engine.memory import memory_report
from redraft_serving.engine.planning import Planner
from redraft_serving.engine.prefill import Prefill
from redraft_serving.engine.prefix import PrefixCache
from redraft_serving.engine.proposer import NoProposer, Proposer
from redraft_serving.engine.round import Rounds
from redraft_serving.engine.rows import Row
from redraft_serving.engine.weight_sets import ServingDraft
from redraft_serving.policy.governor import Governor
from redraft_serving.policy.types import DRAFT, Setting
from redraft_serving.settings import ServingSettings

MIB = 1024 * 1024


class Parts:
    """Target, proposers, policy, rounds and prefill over one set of slots."""

    def __init__(
        self, pair: ModelPair, settings: ServingSettings, setting_of: Callable[[Row], Setting]
    ) -> None:
        self.pair, self.settings = pair, settings
        self._memory: tuple[tuple[int, ...], MemoryReport] | None = None
        slots, max_len = settings.max_num_seqs, pair.max_model_len
        self.target = choose_decoder(pair.target.module)
        self.cache = SlotCache(self.target.layers, slots, max_len, pair.device)
        self.prefixes = PrefixCache(settings.prefix_cache_mb * MIB)
        self.proposer = self._proposer(slots, max_len)
        self.policy = Governor(settings.policy, most=settings.max_speculative_tokens)
        self.planner = Planner(
            self.policy,
            self.proposer,
            setting_of,
            proposers=[name for name in settings.proposers if name != DRAFT or pair.draft is not None],
            most=settings.max_speculative_tokens,
            max_len=max_len,
            gap=settings.prefill_chunk,
        )
        self.rounds = Rounds(self.target, self.cache, self.planner, pair.vocab_size, pair.eos_token_ids)
        self.prefill = Prefill(self.rounds, self.planner, self.prefixes, settings.prefill_chunk)

    def _proposer(self, slots: int, max_len: int) -> Proposer:
        draft = self.pair.draft
        if draft is None or DRAFT not in self.settings.proposers:
            return NoProposer()
        return DraftModelProposer(
            draft.module,
            slots,
            max_len,
            self.pair.vocab_size,
            self.pair.eos_token_ids,
            head_ids=draft.head_ids,
            shared=self.target,
            prefixes=self.prefixes,
        )

    def memory(self) -> MemoryReport:
        """Bytes that the models, their packed weights and the caches hold."""
        drafts = self.proposer.weights.all() if isinstance(self.proposer, DraftModelProposer) else []
        known = tuple(id(draft) for draft in drafts)
        if self._memory is None or self._memory[0] != known:
            self._memory = known, self._models(drafts)
        return replace(self._memory[1], prefix_cache=self.prefixes.bytes)

    def _models(self, drafts: Sequence[ServingDraft]) -> MemoryReport:
        return memory_report(
            self.pair.target.module,
            [draft.module for draft in drafts],
            slots=self.cache.slots,
            max_len=self.cache.bin,
            prefix_cache_limit=self.prefixes.limit_bytes,
            extra_target_bytes=self.target.nbytes,
            extra_draft_bytes=sum(draft.decoder.nbytes for draft in drafts),
        )
