"""The registered model's own text: what is served, where a rollback leads, what the last rounds brought."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from redraft_models.registry_names import Aliases
from redraft_models.registry_text import MOST_CHARACTERS, number, standing, version_link
from redraft_models.registry_versions import VersionInfo

_HEAD = (
    "| version | made (UTC) | acceptance | champion then | gain (interval) | outcome |\n"
    "|---|---|---|---|---|---|"
)


def model_description(
    domain: str,
    held: Mapping[str, VersionInfo],
    newest: Sequence[VersionInfo],
    aliases: Aliases | None = None,
) -> str:
    """Text of the domain's registered model.

    `held` maps each alias that points somewhere to its version; `newest` are the versions to list.
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
        "why it was decided so; the run behind it has the curves and pictures. A version holds `adapter/` "
        "(PEFT, safetensors) and `provenance.json`; it is not an MLflow model flavour.",
    ]
    return "\n\n".join(part for part in parts if part)[:MOST_CHARACTERS]


def _words(info: VersionInfo | None) -> str:
    if info is None:
        return "the base draft (no adapter)"
    rate = info.tags.get("acceptance_rate")
    since = info.tags.get("promoted_at", "")[:16].replace("T", " ")
    return (
        version_link(info.domain, info.version)
        + (f", measured acceptance {number(rate)}" if rate else "")
        + (f", promoted {since} UTC" if since else "")
    )


def _trial_words(info: VersionInfo | None) -> str:
    if info is None:
        return "none; no candidate is waiting"
    doing = "serves a share of the traffic" if info.canary_running else "its round is not settled yet"
    return f"{version_link(info.domain, info.version)}, {doing}"


def _table(newest: Sequence[VersionInfo], held: Mapping[str, VersionInfo]) -> str:
    if not newest:
        return ""
    aliases = {info.version: name for name, info in held.items()}
    return "\n".join([f"The last {len(newest)}:\n", _HEAD, *(_row(info, aliases) for info in newest)])


def _row(info: VersionInfo, aliases: Mapping[int, str]) -> str:
    get = info.tags.get
    made = datetime.fromtimestamp(info.created_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    ends = f" ({number(get('gain_ci_low'), True)} to {number(get('gain_ci_high'), True)})"
    gain = number(get("gain"), True) + ends if get("gain") else ""
    alias = aliases.get(info.version)
    cells = (
        version_link(info.domain, info.version),
        made,
        number(get("acceptance_rate")),
        number(get("champion_acceptance_rate")),
        gain,
        standing(info.tags) + (f", **{alias}**" if alias else ""),
    )
    return f"| {' | '.join(cells)} |"
