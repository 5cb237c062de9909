"""All counts of the engine, and the snapshot of them that other threads read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from redraft_serving.engine.commit import RowRound
from redraft_serving.engine.counts import Counts
from redraft_serving.engine.interface import DraftStatistics, EngineStatistics, domain_and_arm
from redraft_serving.engine.proposer import Proposer
from redraft_serving.engine.rows import EmittedToken
from redraft_serving.engine.weight_sets import BASE, ServingDraft
from redraft_serving.policy.types import PolicyReport

LaneView = Callable[[str], tuple[ServingDraft | None, PolicyReport]]
"""What serves a lane (a domain's arm) now, and what the policy does there."""


@dataclass(slots=True)
class Ledger:
    """Counts since the start, and per lane since its present draft version began to serve.

    The inference thread writes, others read: both hold the lock.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    total: Counts = field(default_factory=Counts)
    lanes: dict[str, tuple[int | str, Counts]] = field(default_factory=dict)
    finished: Counter[str] = field(default_factory=Counter)
    fallback: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0

    def of(self, lane: str, version: int | str) -> Counts:
        """The lane's counts under this version; another version's are put away."""
        known, counts = self.lanes.get(lane, (None, None))
        if counts is None or known != version:
            counts = Counts()
            self.lanes[lane] = (version, counts)
        return counts

    def forget(self, lane: str) -> None:
        """The lane is gone."""
        self.lanes.pop(lane, None)

    def add(self, lane: str, version: int | str, share: RowRound, emitted: list[EmittedToken]) -> None:
        """One row's round, and the tokens that it handed to the client."""
        outcomes = Counter(token.outcome for token in emitted)
        with self.lock:
            for counts in (self.total, self.of(lane, version)):
                counts.emitted.update(outcomes)
                # A lane's counts tell of its draft model alone: that is what versions are compared by.
                if counts is self.total or share.by_draft:
                    counts.add_round(share.proposed, share.tested, share.accepted)

    def snapshot(self, running: int, waiting: int, of_lane: LaneView) -> EngineStatistics:
        """A consistent copy."""
        with self.lock:
            total = self.total
            return EngineStatistics(
                running=running,
                waiting=waiting,
                rounds=total.rounds,
                proposed=total.proposed,
                tested=total.tested,
                accepted=total.accepted,
                emitted=dict(total.emitted),
                accepted_per_position=tuple(total.accepted_per_position),
                tested_per_position=tuple(total.tested_per_position),
                prompt_tokens=self.prompt_tokens,
                finished=dict(self.finished),
                fallback_rows=dict(self.fallback),
                drafts=tuple(self._draft(lane, *of_lane(lane)) for lane in sorted(self.lanes)),
                cached_prompt_tokens=self.cached_prompt_tokens,
            )

    def _draft(self, lane: str, serving: ServingDraft | None, policy: PolicyReport) -> DraftStatistics:
        version, counts = self.lanes[lane]
        domain, arm = domain_and_arm(lane)
        return DraftStatistics(
            domain=domain,
            version=version,
            rounds=counts.rounds,
            proposed=counts.proposed,
            tested=counts.tested,
            accepted=counts.accepted,
            emitted=counts.emitted.total(),
            accepted_per_position=tuple(counts.accepted_per_position),
            tested_per_position=tuple(counts.tested_per_position),
            checksum=serving.checksum if serving else None,
            adapter=serving.adapter if serving else None,
            num_speculative_tokens=policy.num_speculative_tokens,
            state=policy.state,
            policy=policy,
            arm=arm,
        )


def version_of(proposer: Proposer, lane: str) -> int | str:
    """The draft version that serves a lane now."""
    serving = proposer.serving(lane)
    return serving.version if serving else BASE
