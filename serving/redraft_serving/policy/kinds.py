"""Rows that are alike for a decision: same domain, temperature class, setting and offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redraft_serving.policy.acceptance import Acceptance, PositionRates
from redraft_serving.policy.choose import Group
from redraft_serving.policy.types import DRAFT, NGRAM, PREDICTION, RowPlan, RowView, Setting

PREFERENCE = (PREDICTION, DRAFT, NGRAM)
"""Order in which a row with a fixed number takes what is offered."""
MAX_KINDS = 8192
PLAIN = RowPlan(None, 0)


@dataclass(frozen=True, slots=True)
class Kind:
    """What decides about a row. `offers` by PREFERENCE, cut to what "auto" may use or the row asks for."""

    domain: str
    temperature: str
    setting: Setting
    offers: tuple[int, ...]


class Kinds:
    """Numbers the kinds met so far: small integers make cheap keys."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers: dict[Kind, int] = {}
        self._kinds: list[Kind] = []

    def __len__(self) -> int:
        return len(self._kinds)

    def __getitem__(self, number: int) -> Kind:
        return self._kinds[number]

    def number(self, row: RowView, alone: bool) -> int:
        """Of a row's kind. In company, offers are rounded down: one short row is no new composition."""
        most = self._most if row.setting == "auto" else row.setting
        offers = tuple([_cut(row.offers.get(name, 0), most, alone) for name in PREFERENCE])
        kind = Kind(row.domain, row.temperature, row.setting, offers)
        found = self._numbers.get(kind)
        if found is None:
            found = self._numbers[kind] = len(self._kinds)
            self._kinds.append(kind)
        return found

    def clear(self) -> None:
        """Forget all numbers."""
        self._numbers.clear()
        self._kinds.clear()


def _cut(offer: int, most: int, alone: bool) -> int:
    if offer >= most or alone or offer < 3:
        return max(0, min(offer, most))
    return 4 if offer >= 4 and most > 4 else 2


def fixed_part(offers: Mapping[str, int], setting: int) -> RowPlan:
    """What a row with a fixed number does: the first proposer by preference that offers anything."""
    for name in PREFERENCE:
        k = min(setting, offers.get(name, 0))
        if k > 0:
            return RowPlan(name, k)
    return PLAIN


def group(kind: Kind, count: int, acceptance: Acceptance, vetoed: bool, hoped: bool = False) -> Group:
    """A kind's rows with what they may expect from each proposer, or hope for where little is known."""
    offers = dict(zip(PREFERENCE, kind.offers, strict=True))
    if kind.setting != "auto":
        return _fixed(kind, count, acceptance, fixed_part(offers, kind.setting))
    if vetoed:
        return Group(count)
    depth = offers[DRAFT]
    rates = acceptance.rates(kind.domain, DRAFT, kind.temperature)
    return Group(
        count,
        drafted=_sums(rates, depth, hoped)[: depth + 1] if depth else (),
        guessed=_guesses(kind, offers, acceptance, hoped),
        steps=rates.steps(depth) if depth else (),
    )


def _fixed(kind: Kind, count: int, acceptance: Acceptance, part: RowPlan) -> Group:
    if part.proposer is None:
        return Group(count)
    tokens = acceptance.rates(kind.domain, part.proposer, kind.temperature).expected(part.k)[part.k]
    return Group(count, guessed=((tokens, part.proposer),), fixed=(part.proposer, part.k))


def _guesses(
    kind: Kind, offers: Mapping[str, int], acceptance: Acceptance, hoped: bool
) -> list[tuple[float, str | None]]:
    """Best of plain decoding, n-gram lookup and prediction, by the number of tokens guessed."""
    best: list[tuple[float, str | None]] = [(1.0, None)]
    for name in (NGRAM, PREDICTION):
        offer = offers[name]
        if not offer:
            continue
        expected = _sums(acceptance.rates(kind.domain, name, kind.temperature), offer, hoped)
        best.extend([best[-1]] * (offer + 1 - len(best)))
        best = [max(now, (expected[min(k, offer)], name), key=_tokens) for k, now in enumerate(best)]
    return best


def _sums(rates: PositionRates, depth: int, hoped: bool) -> list[float]:
    return rates.hoped(depth) if hoped else rates.expected(depth)


def _tokens(guess: tuple[float, str | None]) -> float:
    return guess[0]
