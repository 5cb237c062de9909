"""Champion and candidate on the same held-out continuations, of their own domain and of those that share the
draft.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redraft_models.adapter import Adapter, ServingWeights
from redraft_models.dtypes import trained_dtype
from redraft_models.head import HEAD_SHA256
from redraft_models.loading import Draft
from redraft_models.settings import DType

from redraft_trainer.agreement import live_agreement, self_acceptance
from redraft_trainer.data import Example
from redraft_trainer.distil import Progress
from redraft_trainer.errors import RoundFailed
from redraft_trainer.measure import Scores, report, score

BASE = "base"
OWN = ""
"""The round's own domain among those that are measured; the others have their names."""
LEAST_SELF_ACCEPTANCE = 0.98
"""A draft that equals the logged law measures 1 but for float16; less means that law and tokens don't fit
together.
"""


def serve_as(draft: Draft, dtype: DType) -> None:
    """Give the draft the numbers that it is served in: base + adapter in float32 is cast to them once."""
    for parameter in draft.module.parameters():
        # Parameters alone, as serving loads them: 16-bit rotary tables blur far positions.
        parameter.data = parameter.data.to(trained_dtype(dtype))


def compare(
    draft: Draft,
    champion: Adapter | None,
    candidate: Adapter,
    heldout: Mapping[str, Sequence[Example]],
    vocab_size: int,
    tell: Progress,
) -> dict[str, Any]:
    """Reports of both drafts as they are served, each under its own head; `heldout` by domain, one of them
    OWN. Raises RoundFailed where the logged laws and tokens don't fit together.
    """
    own = _checked(draft, heldout[OWN], vocab_size)
    weights = ServingWeights(draft.module)
    others: dict[str, dict[str, Any]] = {domain: {} for domain in heldout if domain != OWN}
    found: dict[str, Any] = {"self_acceptance": own, "others": others}
    found["head_sha256"] = candidate.provenance.get(HEAD_SHA256)
    for name, adapter in (("champion", champion), ("candidate", candidate)):
        found[f"{name}_checksum"] = weights.apply(adapter)
        for domain, examples in heldout.items():
            scores = _score(draft, adapter, examples, vocab_size, name, tell)
            measured = report(examples, scores).to_dict()
            if domain == OWN:
                found[name] = measured
            else:
                others[domain][name] = measured
            if domain == OWN and name == "champion":
                found["live"] = live_agreement(examples, scores, _name(champion))
    return found


def _name(adapter: Adapter | None) -> int | str:
    """A version as samples tell it."""
    return BASE if adapter is None or adapter.version is None else adapter.version


def _checked(draft: Draft, examples: Sequence[Example], vocab_size: int) -> float | None:
    own = self_acceptance(draft.module, examples, vocab_size)
    if own is not None and own < LEAST_SELF_ACCEPTANCE:
        raise RoundFailed(
            f"a draft equal to the logged law measures {own:.3f} instead of 1: the samples' laws and tokens "
            "don't fit together, so nothing can be decided on them"
        )
    return own


def _score(
    draft: Draft,
    adapter: Adapter | None,
    examples: Sequence[Example],
    vocab_size: int,
    name: str,
    tell: Progress,
) -> Scores:
    def progress(done: int, total: int) -> None:
        tell({"stage": "measure", "draft": name, "step": done, "total": total})

    head_ids = draft.head_ids if adapter is None else adapter.head_ids
    return score(draft.module, examples, vocab_size, head_ids=head_ids, progress=progress)
