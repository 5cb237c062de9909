"""Which versions had seen samples that were deleted: a trained version is not untrained by a deletion."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from redraft_models.registry_names import ADOPTED_FROM, model_name
from redraft_queue.positions import id_key

if TYPE_CHECKING:
    from redraft_models.registry import VersionInfo
    from redraft_queue.forget import IdRange

ADVICE = (
    "a trained version is not untrained: to be rid of what it learnt, go back to a version from before with "
    "`redraft rollback --to`, and delete the later ones with `redraft prune`"
)


@dataclass(frozen=True)
class Seen:
    """Versions of one domain, newest first."""

    domain: str
    trained: tuple[int, ...] = ()
    """The samples lay within the range that the version was trained on."""
    may_have: tuple[int, ...] = ()
    """They may have been replayed to it, or it began from weights that had seen them."""


def seen_by(domain: str, versions: Iterable[VersionInfo], ranges: Sequence[IdRange]) -> Seen:
    """Every later version may have replayed the samples, since replay draws from all that is older, and most
    of them began from a champion that had been trained on them.
    """
    ordered = sorted(versions, key=lambda info: info.version)
    trained = [info.version for info in ordered if any(_overlaps(info, one) for one in ranges)]
    later = [i.version for i in ordered if trained and i.version > trained[0] and i.version not in trained]
    return Seen(domain, tuple(reversed(trained)), tuple(reversed(later)))


def copies(domain: str, versions: Iterable[VersionInfo], source: Seen) -> Seen:
    """The versions of another domain that began as a copy of such a version, and all that followed them."""
    ordered = sorted(versions, key=lambda info: info.version)
    origins = {f"{model_name(source.domain)}/{number}" for number in (*source.trained, *source.may_have)}
    copied = [info.version for info in ordered if info.tags.get(ADOPTED_FROM) in origins]
    later = [info.version for info in ordered if copied and info.version >= copied[0]]
    return Seen(domain, (), tuple(reversed(later)))


def copies_in(domains: Mapping[str, Sequence[VersionInfo]], seen: Iterable[Seen]) -> list[Seen]:
    """`seen` with what other domains copied from them; a domain may have samples of its own there as well."""
    found = {one.domain: one for one in seen}
    for source in [one for one in found.values() if one.trained]:
        for domain in domains.keys() - {source.domain}:
            copied = copies(domain, domains[domain], source).may_have
            own = found.get(domain, Seen(domain))
            new = set(copied) - set(own.trained)
            found[domain] = replace(own, may_have=tuple(sorted({*own.may_have, *new}, reverse=True)))
    return [found[domain] for domain in sorted(found)]


def _overlaps(info: VersionInfo, found: IdRange) -> bool:
    first, last = info.tags.get("stream_first_id", ""), info.tags.get("stream_last_id", "")
    try:
        return id_key(first) <= id_key(found.last_id) and id_key(found.first_id) <= id_key(last)
    except ValueError:
        # A version that somebody registered by hand names no range.
        return False
