"""What the draft's own confidence says about acceptance, learned per domain and temperature class.

A confidence is the largest probability of the law that a token was drawn from: known before the token is
drawn, so that a rule which looks at it, and keeps what was drawn, leaves the output law alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from redraft_serving.policy.settings import PolicySettings

EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999)
"""Between buckets of confidence; finer near 1, where drafts spend most of their time."""


class _Buckets:
    """Decayed counts by bucket of confidence."""

    __slots__ = ("accepted", "tested")

    def __init__(self) -> None:
        self.accepted = [0.0] * (len(EDGES) + 1)
        self.tested = [0.0] * (len(EDGES) + 1)


class Calibration:
    """Turns confidences into probabilities of acceptance."""

    def __init__(self, settings: PolicySettings) -> None:
        self._decay = 0.5 ** (1.0 / settings.half_life_tokens)
        self._weight = settings.prior_tokens
        self._classes: dict[tuple[str, str], _Buckets] = {}

    def observe(
        self, domain: str, temperature: str, confidences: Sequence[float], tested: int, accepted: int
    ) -> None:
        """One row's round; only tested tokens teach."""
        buckets = self._classes.setdefault((domain, temperature), _Buckets())
        for j, confidence in enumerate(confidences[:tested]):
            b = bisect_right(EDGES, confidence)
            buckets.accepted[b] = buckets.accepted[b] * self._decay + (j < accepted)
            buckets.tested[b] = buckets.tested[b] * self._decay + 1.0

    def probability(self, domain: str, temperature: str, confidence: float) -> float:
        """Of acceptance of one token; the confidence itself where nothing is counted yet."""
        buckets = self._classes.get((domain, temperature))
        if buckets is None:
            return confidence
        b = bisect_right(EDGES, confidence)
        return (buckets.accepted[b] + self._weight * confidence) / (buckets.tested[b] + self._weight)

    def survival(self, domain: str, temperature: str, confidences: Sequence[float]) -> float:
        """Probability that all tokens drafted so far are accepted."""
        product = 1.0
        for confidence in confidences:
            product *= self.probability(domain, temperature, confidence)
        return product

    def age(self, domain: str) -> None:
        """The draft of a domain changed: its counts weigh little from now on."""
        for buckets in self._of(domain):
            for b, tested in enumerate(buckets.tested):
                keep = min(1.0, 0.25 * self._weight / tested) if tested else 0.0
                buckets.accepted[b] *= keep
                buckets.tested[b] *= keep

    def _of(self, domain: str) -> Iterator[_Buckets]:
        return (buckets for (owner, _), buckets in self._classes.items() if owner == domain)
