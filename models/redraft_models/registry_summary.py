"""The registered model's own text: what is served, where a rollback leads, what the last rounds brought."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from redraft_models.registry_markdown import MOST_CHARACTERS, interval, moment, number, table, version_link
from redraft_models.registry_names import Aliases
from redraft_models.registry_text import standing
from redraft_models.registry_versions import VersionInfo

_HEAD = ("version", "made (UTC)", "acceptance", "champion then", "gain (interval)", "outcome")


def model_description(
    domain: str,
    held: Mapping[str, VersionInfo],
    newest: Sequence[VersionInfo],
    aliases: Aliases | None = None,
    experiment_id: str | None = None,
) -> str:
    """Text of the domain's registered model.

    `held` maps each alias that points somewhere to its version; `newest` are the versions to list;
    `experiment_id` is where the runs are.
    """
    names = aliases or Aliases()
    champion, previous = held.get(names.champion), held.get(names.previous)
    trial = held.get(names.challenger)
    parts = [
        f"Drafts for speculative decoding in the domain **{domain}**: LoRA adapters of the base draft.",
        f"- **{names.champion}**, served now: {_words(champion)}\n"
        f"- **{names.previous}**, where `redraft rollback` leads: {_words(previous)}\n"
        f"- **{names.challenger}**: {_trial_words(trial)}",
        _table(newest, held),
        "*Acceptance* is the measured share of drafted tokens that the target keeps, on held-out "
        "continuations of that round: compare it within a row, not between rows. Each version's page says "
        f"why it was decided so; the run behind it {_among(experiment_id)}has the curves and pictures. A "
        "version holds `adapter/` "
        "(PEFT, safetensors) and `provenance.json`; it is not an MLflow model flavour.",
    ]
    return "\n\n".join(part for part in parts if part)[:MOST_CHARACTERS]


def _among(experiment_id: str | None) -> str:
    return f"([all runs](#/experiments/{experiment_id}/runs)) " if experiment_id else ""


def _words(info: VersionInfo | None) -> str:
    if info is None:
        return "the base draft (no adapter)"
    rate = info.tags.get("acceptance_rate")
    since = moment(info.tags.get("promoted_at"))
    return (
        version_link(info.domain, info.version)
        + (f", measured acceptance {number(rate)}" if rate else "")
        + (f", promoted {since}" if since else "")
    )


def _trial_words(info: VersionInfo | None) -> str:
    if info is None:
        return "none; no candidate is waiting"
    doing = "serves a share of the traffic" if info.canary_running else "its round is not settled yet"
    return f"{version_link(info.domain, info.version)}, {doing}"


def _table(newest: Sequence[VersionInfo], held: Mapping[str, VersionInfo]) -> str:
    aliases = {info.version: name for name, info in held.items()}
    return table(f"The last {len(newest)}", _HEAD, [_row(info, aliases) for info in newest])


def _row(info: VersionInfo, aliases: Mapping[int, str]) -> Sequence[str]:
    get = info.tags.get
    made = datetime.fromtimestamp(info.created_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    alias = aliases.get(info.version)
    return (
        version_link(info.domain, info.version),
        made,
        number(get("acceptance_rate")),
        number(get("champion_acceptance_rate")),
        interval(get("gain"), get("gain_ci_low"), get("gain_ci_high")),
        standing(info.tags) + (f", **{alias}**" if alias else ""),
    )
