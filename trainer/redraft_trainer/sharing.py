"""Domains that share a draft: a better draft for one of them must not be paid for by another.

A round of the domain whose champion they are served with measures both drafts on their newest held-out
samples too. The split by prompt is the round's own, so none of these prompts was ever trained on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import redis
from redraft_queue.newest import newest_samples

from redraft_trainer.gate import OtherDomains, lost_too_much, too_few
from redraft_trainer.identity import Identity
from redraft_trainer.plan import Plan
from redraft_trainer.reports import MeasureReport
from redraft_trainer.sample_files import SampleWriter
from redraft_trainer.settings import GateSettings, TrainerSettings
from redraft_trainer.split import split, unusable

MOST_ENTRIES = 10_000
"""Read of each sharing domain, however few of them can be used."""
MOST_TAGGED = 40
"""Domains in the tag, those that lose most first: MLflow refuses a tag longer than 5,000 characters."""


def collect_others(
    client: redis.Redis, plan: Plan, folder: Path, settings: TrainerSettings, identity: Identity
) -> dict[str, str]:
    """Write each sharing domain's newest held-out samples, about `max_heldout_tokens` at most, to a file.

    Answers domain -> name of its file in `folder`. Up to the ids that the plan fixed, so that a round which
    is delivered again measures on the same ones. Raises StreamUnavailable.
    """
    held_out = max(plan.holdout_percent, settings.holdout_percent)
    files: dict[str, str] = {}
    for number, (domain, last_id) in enumerate(sorted(plan.others.items())):
        files[domain] = f"other-{number}.samples"
        found = newest_samples(
            client,
            domain,
            last_id,
            expected_target=identity.target,
            expected_tokenizer=identity.tokenizer,
            most_entries=MOST_ENTRIES,
        )
        with SampleWriter(folder / files[domain]) as writer:
            for sample in found:
                if writer.tokens >= settings.max_heldout_tokens:
                    break
                if unusable(sample) is None and split(sample, held_out, 0) == "heldout":
                    writer.write(sample)
    return files


def other_reports(result: Mapping[str, Any]) -> OtherDomains:
    """(champion, candidate) of each sharing domain, from what the training process measured."""
    return {
        domain: (MeasureReport.from_dict(pair["champion"]), MeasureReport.from_dict(pair["candidate"]))
        for domain, pair in result["others"].items()
    }


def others_tag(others: OtherDomains, settings: GateSettings) -> str | None:
    """The numbers of every sharing domain as compact JSON; None where no draft is shared."""
    rows = {domain: _row(*pair, settings) for domain, pair in others.items()}
    worst = sorted(rows, key=lambda domain: (rows[domain]["gain"] is None, rows[domain]["gain"], domain))
    shown = {domain: rows[domain] for domain in worst[:MOST_TAGGED]}
    return json.dumps(shown, separators=(",", ":")) if shown else None


def others_metrics(others: OtherDomains) -> dict[str, float | None]:
    """The same numbers as metrics of the run."""
    found: dict[str, float | None] = {}
    for domain, (champion, candidate) in others.items():
        found[f"other.{domain}.champion_acceptance_rate"] = champion.acceptance_rate
        found[f"other.{domain}.acceptance_rate"] = candidate.acceptance_rate
    return found


def _row(champion: MeasureReport, candidate: MeasureReport, settings: GateSettings) -> dict[str, Any]:
    before, after = champion.acceptance_rate, candidate.acceptance_rate
    known = before is not None and after is not None
    verdict = "lost" if lost_too_much(champion, candidate, settings) is not None else "kept"
    return {
        "champion": _rounded(before),
        "candidate": _rounded(after),
        "gain": _rounded(after - before) if known else None,  # type: ignore[operator]
        "requests": candidate.requests,
        "tokens": candidate.tokens,
        "verdict": "too few" if too_few(candidate, settings) else verdict,
    }


def _rounded(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 4)
