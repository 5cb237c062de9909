"""What a training round needs to know, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from redraft_models.settings import ModelSettings
from redraft_queue.settings import QueueSettings

from redraft_trainer.settings import GateSettings, TrainerSettings

if TYPE_CHECKING:
    import redis
    from redraft_models.registry import Registry, VersionInfo

CHALLENGER = "challenger"
"""Decision of a round whose candidate the gate approved and live traffic is still to decide on."""
Progress = Callable[[Mapping[str, Any]], None]
"""Gets plain, JSON-able maps with at least `stage`; may raise to end the round."""


@dataclass(frozen=True)
class TrainContext:
    """Settings and connections, made once per worker and used by each of its rounds."""

    models: ModelSettings
    trainer: TrainerSettings
    gate: GateSettings
    queue: QueueSettings
    data_dir: Path
    cache_dir: Path
    registry: Registry
    client: redis.Redis
    canary: bool = False
    """Whether an approved candidate first serves a share of the traffic, and becomes champion only there."""
    canary_seconds: float = 86_400.0
    """Seconds within which serving workers decide on such a candidate, `canary.max_seconds` of theirs."""
    shared_drafts: Mapping[str, str] = field(default_factory=dict)
    """Domain -> the domain whose champion serves it."""

    def shared_by(self, domain: str) -> tuple[str, ...]:
        """Other domains whose traffic this domain's champion serves."""
        return tuple(sorted(other for other, whose in self.shared_drafts.items() if whose == domain))

    def work_dir(self, round_id: str) -> Path:
        """Where a round keeps its files until it succeeds."""
        return self.data_dir / "rounds" / round_id


@dataclass(frozen=True)
class RoundResult:
    """How a round ended. Numbers that it didn't get to are None."""

    decision: str
    """promoted | challenger | rejected | skipped; a challenger was approved, and live traffic decides."""
    reason: str
    version: int | None = None
    acceptance_rate: float | None = None
    champion_acceptance_rate: float | None = None
    gain: float | None = None
    gain_ci_low: float | None = None
    gain_ci_high: float | None = None
    heldout_requests: int | None = None
    heldout_tokens: int | None = None
    tokens_added: int | None = None
    """Output tokens that the domain's stream had ever taken when the round's range was fixed."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)

    @classmethod
    def skipped(cls, reason: str, tokens_added: int | None = None) -> Self:
        """A round that found nothing to do."""
        return cls("skipped", reason, tokens_added=tokens_added)

    @classmethod
    def of_version(cls, info: VersionInfo) -> Self:
        """The result of the round that registered a version, from its tags."""
        tags = info.tags
        return cls(
            decision=CHALLENGER if info.canary_running else tags.get("decision", "rejected"),
            reason=tags.get("decision_reason", ""),
            version=info.version,
            acceptance_rate=_number(tags, "acceptance_rate"),
            champion_acceptance_rate=_number(tags, "champion_acceptance_rate"),
            gain=_number(tags, "gain"),
            gain_ci_low=_number(tags, "gain_ci_low"),
            gain_ci_high=_number(tags, "gain_ci_high"),
            heldout_requests=_count(tags, "heldout_requests"),
            heldout_tokens=_count(tags, "heldout_tokens"),
            tokens_added=_count(tags, "stream_last_tokens"),
        )


def _number(tags: Mapping[str, str], name: str) -> float | None:
    return float(tags[name]) if name in tags else None


def _count(tags: Mapping[str, str], name: str) -> int | None:
    return int(tags[name]) if name in tags else None
