"""What a demo run found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from redraft_trainer.intervals import Interval

from redraft_ops.demo.numbers import LiveCounts, Speed, break_even, expected_tokens
from redraft_ops.output import finite


@dataclass(frozen=True)
class Side:
    """One draft: on held-out continuations, on live requests, and on one stream alone."""

    name: str
    measured: Interval
    heldout_requests: int
    heldout_tokens: int
    live: LiveCounts
    speed: Speed

    def modelled_tokens_per_second(self, k: int) -> float | None:
        """expected_tokens(measured acceptance, k) over the measured time of a round."""
        seconds = self.speed.seconds_per_round
        rate = finite(self.measured.estimate)
        return expected_tokens(rate, k) / seconds if seconds and rate is not None else None


@dataclass(frozen=True)
class DemoResult:
    """Everything that the table, the report and the JSON are made of."""

    before: Side
    after: Side
    gain: Interval
    """Paired on the same held-out prompts; each end is one-sided at 95 %."""
    off: Speed
    num_speculative_tokens: int
    decision: str
    longest_pause_seconds: float
    usual_pause_seconds: float
    streams_during_swap: int
    requests: int
    failures: tuple[str, ...]
    greedy_equal: bool
    seconds: float

    @property
    def break_even_before(self) -> float | None:
        """Acceptance at which the first draft would be as fast as plain decoding."""
        return self._break_even(self.before)

    @property
    def break_even_after(self) -> float | None:
        """The same for the new draft; both have one shape, so the two agree up to timing noise."""
        return self._break_even(self.after)

    def _break_even(self, side: Side) -> float | None:
        token = self.off.tokens_per_second
        return break_even(
            side.speed.seconds_per_round, 1 / token if token else None, self.num_speculative_tokens
        )

    def to_json(self) -> dict[str, Any]:
        """The document of `redraft demo --json`."""
        before, after = self.before, self.after
        return {
            "acceptance_rate_before": finite(before.measured.estimate),
            "acceptance_rate_after": finite(after.measured.estimate),
            "gain": finite(self.gain.estimate),
            "gain_ci_low": finite(self.gain.low),
            "live_acceptance_rate_before": _rate(before),
            "live_acceptance_rate_after": _rate(after),
            "mean_acceptance_length_before": before.live.mean_acceptance_length,
            "mean_acceptance_length_after": after.live.mean_acceptance_length,
            "tokens_per_second_off": self.off.tokens_per_second,
            "tokens_per_second_before": before.speed.tokens_per_second,
            "tokens_per_second_after": after.speed.tokens_per_second,
            "longest_pause_seconds": self.longest_pause_seconds,
            "failed_requests": len(self.failures),
            "greedy_equal": self.greedy_equal,
            "seconds": round(self.seconds, 1),
        }


def _rate(side: Side) -> float | None:
    return finite(side.live.acceptance.estimate) if side.live.acceptance else None
