"""From stream entries to samples: what can't be used is set aside with a reason, what repeats is dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from redraft_queue.dead_letters import DeadLetter
from redraft_queue.errors import UnreadableSample
from redraft_queue.records import Sample

FIELD = b"sample"
"""The one field of a stream entry."""

Entry = tuple[str, dict[bytes, bytes]]


@dataclass(slots=True)
class ReadTally:
    """What one `read` met; entries = samples + duplicates + dead."""

    entries: int = 0
    samples: int = 0
    duplicates: int = 0
    dead: int = 0


class Reader:
    """Reads the entries of one range. Remembers the identities it has met, not the samples."""

    def __init__(self, domain: str, target: str | None, tokenizer: str | None, tally: ReadTally) -> None:
        self._domain = domain
        self._target = target
        self._tokenizer = tokenizer
        self._tally = tally
        self._seen: set[tuple[str, int]] = set()
        self._letters: list[DeadLetter] = []

    def samples(self, entries: Iterable[Entry]) -> Iterator[tuple[str, Sample]]:
        """The usable, first-met samples among `entries`."""
        for entry_id, fields in entries:
            self._tally.entries += 1
            sample = self._usable(entry_id, fields)
            if sample is None:
                self._tally.dead += 1
            elif sample.identity in self._seen:
                self._tally.duplicates += 1
            else:
                self._seen.add(sample.identity)
                self._tally.samples += 1
                yield entry_id, sample

    def know(self, entries: Iterable[Entry]) -> None:
        """Samples that lie before the range: one that was appended twice may lie in it again."""
        for _, fields in entries:
            try:
                self._seen.add(_unpack(fields).identity)
            except UnreadableSample:
                continue

    def take_letters(self) -> list[DeadLetter]:
        """The dead letters since the last call."""
        letters, self._letters = self._letters, []
        return letters

    def _usable(self, entry_id: str, fields: dict[bytes, bytes]) -> Sample | None:
        packed = fields.get(FIELD, b"")
        try:
            sample = _unpack(fields)
        except UnreadableSample as error:
            self._letters.append(DeadLetter(entry_id, str(error), packed))
            return None
        reason = self._mismatch(sample)
        if reason is not None:
            # Readable, and still in the stream: thousands of copies would only fill the server's memory.
            self._letters.append(DeadLetter(entry_id, reason))
            return None
        return sample

    def _mismatch(self, sample: Sample) -> str | None:
        for name, found, expected in (
            ("domain", sample.domain, self._domain),
            ("target_fingerprint", sample.target_fingerprint, self._target),
            ("tokenizer_fingerprint", sample.tokenizer_fingerprint, self._tokenizer),
        ):
            if expected is not None and found != expected:
                return f"{name} is {found:.80}, but this round reads {expected:.80}"
        return None


def _unpack(fields: dict[bytes, bytes]) -> Sample:
    if FIELD not in fields:
        names = ", ".join(name.decode(errors="replace")[:40] for name in list(fields)[:5]) or "none"
        raise UnreadableSample(f"the entry has no field sample; its fields are: {names}")
    return Sample.unpack(fields[FIELD])
