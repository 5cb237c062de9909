"""Which answers have to be the same, and whether they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redraft_ops.bench.answers import Answer, Ask, Block
from redraft_ops.bench.equality import NEAR_TIE, Comparison, compare, same_texts
from redraft_ops.bench.library_process import LibraryProcess
from redraft_ops.bench.plan import LIBRARY, BenchPlan

Answered = Mapping[tuple[str, str], Sequence[Block]]
"""Blocks by (name, dtype)."""
NOT_COMPARED: dict[str, Any] = {"equal": None, "near_ties": None, "different": None, "reference": None}


class Judge:
    """Compares greedy answers with the target's own plain decoding of the same run."""

    def __init__(self, plan: BenchPlan, libraries: Mapping[str, LibraryProcess], tokenizer: Any) -> None:
        self.plan, self.libraries, self.tokenizer = plan, libraries, tokenizer

    def verdicts(self, answered: Answered, asks: Sequence[Ask]) -> dict[tuple[str, str], dict[str, Any]]:
        """`equal` and what stands behind it, for every lane; null where nothing can be said."""
        return {key: self._verdict(key, answered, asks) for key in answered}

    def _verdict(self, key: tuple[str, str], answered: Answered, asks: Sequence[Ask]) -> dict[str, Any]:
        reference = reference_of(key, answered)
        if reference is None or self.plan.temperature > 0:
            return NOT_COMPARED
        own, expected = _answers(answered[key]), _answers(answered[reference])
        if key[1] not in NEAR_TIE:
            texts = {a.index: self.tokenizer.decode(a.ids, skip_special_tokens=True) for a in expected}
            return {**NOT_COMPARED, "equal": same_texts(own, texts), "reference": " ".join(reference)}
        found = self._compare(own, expected, asks, key[1])
        return {
            "equal": found.equal,
            "near_ties": found.near_ties,
            "different": len(found.different),
            "reference": " ".join(reference),
        }

    def _compare(
        self, own: Sequence[Answer], expected: Sequence[Answer], asks: Sequence[Ask], dtype: str
    ) -> Comparison:
        by_index = {ask.index: ask for ask in asks}
        return compare(own, expected, by_index, NEAR_TIE[dtype], self.libraries[dtype].gap)


def reference_of(key: tuple[str, str], answered: Answered) -> tuple[str, str] | None:
    """Whose answers a lane's have to be.

    In float32 everything is compared with transformers' `generate`, else with speculation off. In shorter
    dtypes two implementations round differently, so each side is compared with its own plain decoding. A
    server of somebody else's is compared with the most exact plain decoding that there is.
    """
    name, dtype = key
    if dtype not in NEAR_TIE:
        plain = sorted(
            (k for k in answered if k[0] in ("generate", "off")), key=lambda k: (k[1] != "float32", k)
        )
        return plain[0] if plain else None
    own = ("generate", "off") if dtype == "float32" or name in LIBRARY else ("off", "generate")
    return next(((one, dtype) for one in own if (one, dtype) in answered), None)


def _answers(blocks: Sequence[Block]) -> list[Answer]:
    return [answer for block in blocks for answer in block.answers]
