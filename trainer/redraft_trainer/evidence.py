"""What a round leaves in the registry: parameters, curves, pictures, tables, tags. Everything a person asks
for later.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from redraft_models.errors import RegistryError
from redraft_queue.errors import RoundInterrupted

from redraft_trainer.context import TrainContext
from redraft_trainer.gate import Decision
from redraft_trainer.identity import Identity
from redraft_trainer.plan import Collected, Plan
from redraft_trainer.process import LOG_FILE
from redraft_trainer.reports import MeasureReport

if TYPE_CHECKING:
    from redraft_models.registry import Registry, VersionInfo

logger = logging.getLogger(__name__)
BASE = "base"
PICTURED_VERSIONS = 50


def why(found: Collected) -> str:
    """Why samples were not usable, for a sentence; empty where none was skipped."""
    reasons = {**found.skipped, "dead": found.tally.dead, "held_out": found.requests["heldout"]}
    told = ", ".join(f"{count} {reason}" for reason, count in reasons.items() if count)
    return f"({told})" if told else ""


def params(
    context: TrainContext, plan: Plan, found: Collected, champion: VersionInfo | None
) -> dict[str, object]:
    """Parameters of the run."""
    return {
        **{name: value for name, value in context.trainer.model_dump().items() if value is not None},
        **{f"gate.{name}": value for name, value in context.gate.model_dump().items()},
        "target": context.models.target,
        "draft": context.models.draft,
        "serving_dtype": context.models.dtype,
        "champion": champion.version if champion is not None else BASE,
        "stream_after_id": plan.after_id or "",
        "stream_last_id": plan.last_id or "",
        "new_entries": plan.new_entries,
        "lost_entries": found.lost(plan),
        "train_requests": found.requests["train"],
        "train_tokens": found.tokens["train"],
        "replayed_tokens": found.tokens["train"] - found.tokens["new"],
        "validation_requests": found.requests["validation"],
        "heldout_requests": found.requests["heldout"],
        "dead_letters": found.tally.dead,
        "duplicates": found.tally.duplicates,
        **{f"skipped.{reason}": count for reason, count in found.skipped.items()},
    }


def provenance(
    context: TrainContext, round_id: str, plan: Plan, identity: Identity, champion: VersionInfo | None
) -> dict[str, Any]:
    """What travels with the adapter's files; nothing of this machine."""
    return {
        "round_id": round_id,
        "domain": plan.domain,
        "target_fingerprint": identity.target,
        "tokenizer_fingerprint": identity.tokenizer,
        "parent_version": champion.version if champion is not None else BASE,
        "stream": {"after_id": plan.after_id, "last_id": plan.last_id},
        "settings": context.trainer.model_dump(),
    }


def tags(
    round_id: str,
    plan: Plan,
    found: Collected,
    identity: Identity,
    champion: VersionInfo | None,
    result: Mapping[str, Any],
) -> dict[str, object]:
    """Version tags beside the decision's own; None is left out. `stream_last_*` is the next cursor."""
    live = result["live"]
    return {
        "round_id": round_id,
        "stream_first_id": found.first_id,
        "stream_last_id": plan.last_id,
        "stream_last_ordinal": plan.last_ordinal,
        "stream_last_tokens": plan.last_tokens,
        "stream_lost": found.lost(plan),
        "holdout_percent": found.holdout_percent,
        "target_fingerprint": identity.target,
        "tokenizer_fingerprint": identity.tokenizer,
        "base_draft_fingerprint": result["base_draft_fingerprint"],
        "parent_version": champion.version if champion is not None else BASE,
        "started_from": result["started_from"],
        "sha256": result["sha256"],
        "head_sha256": result["head_sha256"],
        "head_size": result["head_size"],
        "head_coverage": result["head_coverage"],
        "checksum": result["candidate_checksum"],
        "precision_effective": result["precision_effective"],
        "self_acceptance": _rounded(result["self_acceptance"]),
        "champion_live_acceptance_rate": _rounded(live["live_acceptance"]),
        "champion_agreement": agreement_sentence(live),
        "champion_problem": result["champion_problem"],
        "train_requests": found.requests["train"],
        "train_tokens": found.tokens["train"],
        "replayed_tokens": found.tokens["train"] - found.tokens["new"],
        **_acceptance_interval(result),
    }


def _acceptance_interval(result: Mapping[str, Any]) -> dict[str, float | None]:
    """Ends of the candidate's own interval, for the picture over versions."""
    interval = MeasureReport.from_dict(result["candidate"]).interval()
    return {"acceptance_ci_low": _rounded(interval.low), "acceptance_ci_high": _rounded(interval.high)}


def agreement_sentence(live: Mapping[str, Any]) -> str:
    """Whether the champion's measured acceptance is what it really had."""
    if live["agrees"] is None:
        return "unknown: no held-out request was served by the champion alone"
    rates = f"live {live['live_acceptance']:.4f}, measured {live['measured_acceptance']:.4f}"
    verdict = "agrees" if live["agrees"] else "does not agree"
    return f"{verdict}: {rates} on {live['tested']} tested positions"


def log_training(registry: Registry, run_id: str, result: Mapping[str, Any], decision: Decision) -> None:
    """Curves, final numbers and what the training really ran on."""
    from redraft_trainer.pictures import training_curves

    for step, loss, rate, norm in result["steps"]:
        registry.log_metrics(run_id, {"loss": loss, "learning_rate": rate, "grad_norm": norm}, step)
    for step, acceptance in result["validation"]:
        registry.log_metrics(run_id, {"validation_acceptance": acceptance}, step)
    names = ("precision_effective", "training_device", "started_from", "best_step", "steps_taken")
    registry.log_params(run_id, {name: result[name] for name in names})
    live = result["live"]
    registry.log_metrics(
        run_id,
        {
            "acceptance_rate": decision.acceptance_rate,
            "champion_acceptance_rate": decision.champion_acceptance_rate,
            "gain": decision.gain,
            "gain_ci_low": decision.gain_ci_low,
            "gain_ci_high": decision.gain_ci_high,
            "heldout_requests": decision.heldout_requests,
            "heldout_tokens": decision.heldout_tokens,
            "champion_live_acceptance_rate": live["live_acceptance"],
            "trained_tokens": result["trained_tokens"],
            "training_seconds": result["training_seconds"],
            "self_acceptance": result["self_acceptance"],
            "head_size": result["head_size"],
            "head_coverage": result["head_coverage"],
        },
        result["steps_taken"],
    )
    loss = {int(step): float(value) for step, value, *_ in result["steps"]}
    curve = {int(step): float(value) for step, value in result["validation"]}
    registry.log_figure(run_id, training_curves(loss, curve, result["best_step"]), "pictures/training.png")
    if live["agrees"] is False:
        logger.warning("the champion's acceptance %s", agreement_sentence(live))


def log_measurements(
    registry: Registry, run_id: str, domain: str, champion: MeasureReport, candidate: MeasureReport
) -> None:
    """The held-out table and the picture along the answer. Ids of requests only: prompts stay in the
    stream.
    """
    from redraft_trainer.pictures import acceptance_by_position

    pairs = list(zip(champion.scores, candidate.scores, strict=True))
    registry.log_table(
        run_id,
        {
            "request_id": [after.request_id for _, after in pairs],
            "tokens": [after.tokens for _, after in pairs],
            "champion": [round(before.overlap / max(before.tokens, 1), 4) for before, _ in pairs],
            "candidate": [round(after.overlap / max(after.tokens, 1), 4) for _, after in pairs],
        },
        "heldout.json",
    )
    picture = acceptance_by_position(champion, candidate, domain)
    registry.log_figure(run_id, picture, "pictures/acceptance_by_position.png")


def close(registry: Registry, run_id: str, domain: str) -> None:
    """The picture over versions, and the end of the run. The version stands already: a failure here is only
    told.
    """
    from redraft_trainer.pictures import acceptance_by_version, version_points

    try:
        points = version_points(registry.versions(domain, most=PICTURED_VERSIONS))
        registry.log_figure(
            run_id, acceptance_by_version(points, domain), "pictures/acceptance_by_version.png"
        )
        registry.end_run(run_id)
    except RegistryError as error:
        logger.warning("the run %s of domain %s was not closed: %s", run_id, domain, error)


def close_failed(registry: Registry, run_id: str, error: BaseException, folder: Path) -> None:
    """End the run of a round that has no version, with the reason and the training's log."""
    interrupted = isinstance(error, RoundInterrupted) or not isinstance(error, Exception)
    try:
        registry.log_text(run_id, f"{type(error).__name__}: {error}\n", "failure.txt")
        log = folder / LOG_FILE
        if log.is_file():
            registry.log_text(run_id, log.read_text(errors="replace")[-100_000:], LOG_FILE)
        outcome = "interrupted" if interrupted else "failed"
        registry.note_run(run_id, f"no version: {outcome}", f"**{outcome.capitalize()}.** {error}")
        registry.end_run(run_id, "KILLED" if interrupted else "FAILED")
    except RegistryError as problem:
        logger.warning("the failed run %s was not closed: %s", run_id, problem)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)
