"""What a person reads in MLflow's UI: Markdown for the experiment, the registered model and each version."""

from collections.abc import Mapping

_HEADLINES = {"promoted": "Promoted", "rejected": "Not promoted"}


def experiment_description(domain: str) -> str:
    """Note of the domain's experiment."""
    return (
        f"Training rounds of redraft for the domain **{domain}**. Each run is one round: it distils the "
        "target into "
        "a LoRA adapter of the draft from a range of the sample stream, then measures the serving draft "
        "and the "
        "candidate on the same held-out continuations.\n\n"
        "Curves: loss and validation acceptance by step. Pictures and the held-out table: under *Artifacts*. "
        f"What each round led to: registered model `redraft-{domain}`."
    )


def model_description(domain: str, champion: str, previous: str) -> str:
    """Text of the domain's registered model; `champion` and `previous` say in words what each serves."""
    return (
        f"Drafts for speculative decoding in the domain **{domain}**, as LoRA adapters of the base draft.\n\n"
        f"- **champion**, served now: {champion}\n"
        f"- **previous**, where `redraft rollback` leads: {previous}\n"
        "- **challenger**: the candidate of a round that is not settled yet\n\n"
        "Every candidate is a version. `validation_status` says what became of it (approved: it was better "
        "by "
        "measurement and became champion; rejected: `decision_reason` says why not). A version holds "
        "`adapter/` (PEFT, safetensors) and `provenance.json`; it is not an MLflow model flavour."
    )


def version_words(version: int | None, tags: Mapping[str, str]) -> str:
    """A version in a phrase, for the registered model's text."""
    if version is None:
        return "the base draft (no adapter)"
    rate = tags.get("acceptance_rate")
    return f"version {version}" + (f", measured acceptance {_number(rate)}" if rate else "")


def version_description(tags: Mapping[str, str], heading: str = "") -> str:
    """Text of a version: the decision in words, then the evidence as a table."""
    headline = _HEADLINES.get(tags.get("decision", ""), "Candidate")
    reason = tags.get("decision_reason", "")
    opening = f"**{headline}.** {reason}".strip()
    rows = "\n".join(f"| {name} | {value} |" for name, value in _evidence(tags) if value)
    table = f"| evidence | value |\n|---|---|\n{rows}" if rows else ""
    return "\n\n".join(part for part in (heading, opening, table) if part)


def _evidence(tags: Mapping[str, str]) -> list[tuple[str, str]]:
    get = tags.get
    interval = f" (interval {_number(get('gain_ci_low'))} to {_number(get('gain_ci_high'))})"
    return [
        ("measured acceptance, candidate", _number(get("acceptance_rate"))),
        ("measured acceptance, champion", _number(get("champion_acceptance_rate"))),
        ("gain", _number(get("gain"), signed=True) + interval if get("gain") else ""),
        ("held out", _held_out(tags)),
        ("head", _head(tags)),
        ("trained on stream ids", _between(get("stream_first_id"), get("stream_last_id"))),
        ("parent version", get("parent_version", "")),
        ("training round", _code(get("round_id"))),
        ("base draft", _code(get("base_draft_fingerprint"))),
        ("target", _code(get("target_fingerprint"))),
        ("sha256 of the weights", _code(get("sha256"))),
    ]


def _held_out(tags: Mapping[str, str]) -> str:
    requests, tokens = tags.get("heldout_requests"), tags.get("heldout_tokens")
    return f"{requests} requests, {tokens} tokens" if requests and tokens else ""


def _head(tags: Mapping[str, str]) -> str:
    size, coverage = tags.get("head_size"), _number(tags.get("head_coverage"))
    return f"{size} ids, {coverage} of the held-out tokens" if size and coverage else ""


def _between(first: str | None, last: str | None) -> str:
    return f"`{first}` to `{last}`" if first and last else ""


def _code(value: str | None) -> str:
    return f"`{value}`" if value else ""


def _number(value: str | None, signed: bool = False) -> str:
    if not value:
        return ""
    try:
        return f"{float(value):+.4f}" if signed else f"{float(value):.4f}"
    except ValueError:
        return value
