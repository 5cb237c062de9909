"""Which part of the stream a round works on, and how it is parted into files.

The range is fixed once, at the round's start, and kept in its folder: a round that is delivered again after
a crash trains on the same samples and so comes to the same decision. A round is a pure function of its
range.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from redraft_queue.positions import BEGINNING, backlog_at
from redraft_queue.records import Sample
from redraft_queue.stream import ReadTally, SampleStream

from redraft_trainer.sample_files import SampleWriter
from redraft_trainer.settings import TrainerSettings
from redraft_trainer.split import Part, split, unusable

PLAN_FILE = "plan.json"
CHUNK = 16
"""Neighbouring samples that replay takes at a time."""
MOST_CHUNKS = 256
KNOWN = 1024
"""Entries before the range that are not trained on again: several batches of a worker, appended twice."""
TICK = 256
"""Samples between two calls of `tick`."""


@dataclass(frozen=True)
class Plan:
    """A range of the stream: after_id < id <= last_id; the last three are the next round's cursor."""

    domain: str
    after_id: str | None
    last_id: str | None
    last_ordinal: int
    last_tokens: int
    oldest_id: str | None
    new_entries: int
    new_tokens: int
    lost: int
    """Entries that were trimmed before the range was fixed, and that no round saw."""
    holdout_percent: int = 0
    """The share of prompts that earlier rounds held out: a lower setting makes none of them trainable."""
    forgotten: int = 0
    """Entries of the range that had been deleted on request before it was fixed."""
    others: Mapping[str, str | None] = field(default_factory=dict)
    """Domains that share the draft, with the newest id of each: what they are measured up to."""


@dataclass
class Collected:
    """What the range held, by part: requests (choices of one count once, as at the gate) and tokens;
    `skipped` by reason.
    """

    requests: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    first_id: str | None = None
    holdout_percent: int = 0
    """The share of prompts that was held out."""
    tally: ReadTally = field(default_factory=ReadTally)
    forgotten: int = 0
    """Entries of the range that were deleted on request, by the time it had been read."""

    def lost(self, plan: Plan) -> int:
        """Entries of the range that no round saw: trimmed before it was fixed, or before it was read."""
        deleted = max(0, self.forgotten - plan.forgotten)
        return max(plan.lost, plan.new_entries - self.tally.entries - deleted)


def make_plan(
    stream: SampleStream, domain: str, cursor: Mapping[str, str], others: Iterable[str] = ()
) -> Plan:
    """The range from a cursor (tags of the newest version, or nothing) to the stream's present end. `others`
    are the domains that share the draft.
    """
    last_id = cursor.get("stream_last_id")
    ordinal, tokens = int(cursor.get("stream_last_ordinal", 0)), int(cursor.get("stream_last_tokens", 0))
    # One look for both: what is appended between two looks would count as new here and at the next round.
    position = stream.position(domain, last_id or BEGINNING)
    backlog = backlog_at(position, last_id, ordinal, tokens)
    return Plan(
        domain=domain,
        after_id=None if backlog.restarted else last_id,
        last_id=position.last_id,
        last_ordinal=position.entries_added,
        last_tokens=position.tokens_added,
        oldest_id=position.first_id,
        new_entries=backlog.new_entries,
        new_tokens=backlog.new_tokens,
        lost=backlog.lost,
        forgotten=position.forgotten,
        holdout_percent=int(cursor.get("holdout_percent", 0)),
        others={other: stream.position(other).last_id for other in others},
    )


def load_plan(folder: Path) -> Plan | None:
    """The plan that an earlier delivery of this round wrote."""
    path = folder / PLAN_FILE
    return Plan(**json.loads(path.read_text())) if path.is_file() else None


def save_plan(plan: Plan, folder: Path) -> None:
    """Write the plan, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{PLAN_FILE}.tmp"
    unfinished.write_text(json.dumps(asdict(plan), indent=2))
    os.replace(unfinished, folder / PLAN_FILE)


def part_file(folder: Path, part: Part) -> Path:
    """The file of a part's samples."""
    return folder / f"{part}.samples"


def collect(
    stream: SampleStream,
    plan: Plan,
    folder: Path,
    settings: TrainerSettings,
    target: str,
    tokenizer: str,
    tick: Callable[[int], None] | None = None,
) -> Collected:
    """Write the range's usable samples to one file per part, and replayed older ones to the training file.

    `target` and `tokenizer` are the fingerprints that a sample must carry; others go to the dead letters.
    `tick` is called now and then with the number of entries read, and may raise.
    """
    held_out = max(plan.holdout_percent, settings.holdout_percent)
    settings = settings.model_copy(update={"holdout_percent": held_out})
    found = Collected(holdout_percent=held_out)
    seen: set[tuple[str, int]] = set()
    parts: tuple[Part, ...] = ("train", "validation", "heldout")
    with ExitStack() as stack:
        writers = {part: stack.enter_context(SampleWriter(part_file(folder, part))) for part in parts}
        entries = stream.read(
            plan.domain,
            plan.after_id,
            plan.last_id,
            expected_target=target,
            expected_tokenizer=tokenizer,
            tally=found.tally,
            known=KNOWN,
        )
        for entry_id, sample in entries:
            found.first_id = found.first_id or entry_id
            if tick is not None and found.tally.samples % TICK == 0:
                tick(found.tally.entries)
            seen.add(sample.identity)
            reason = unusable(sample)
            if reason is None:
                writers[split(sample, settings.holdout_percent, settings.validation_percent)].write(sample)
            else:
                found.skipped[reason] += 1
        found.forgotten = stream.forgotten(plan.domain, plan.after_id, plan.last_id)
        new_tokens = writers["train"].tokens
        found.requests["new"], found.tokens["new"] = writers["train"].requests, new_tokens
        wanted = round(new_tokens * settings.replay_fraction / (1 - settings.replay_fraction))
        for sample in _replay(stream, plan, settings, wanted, target, tokenizer, seen):
            writers["train"].write(sample)
        for part, writer in writers.items():
            found.requests[part], found.tokens[part] = writer.requests, writer.tokens
    return found


def _replay(
    stream: SampleStream,
    plan: Plan,
    settings: TrainerSettings,
    wanted: int,
    target: str,
    tokenizer: str,
    seen: set[tuple[str, int]],
) -> Iterator[Sample]:
    """Older training samples of about `wanted` tokens, in chunks from random places before the cursor.

    Ids are times, so a random time finds a place without reading what lies before it.
    """
    generator = random.Random(f"{settings.seed} {plan.after_id}")
    for start in _replay_starts(plan, generator):
        if wanted <= 0:
            return
        found = stream.read(
            plan.domain, start, plan.after_id, expected_target=target, expected_tokenizer=tokenizer
        )
        for _, sample in islice(found, CHUNK):
            part = split(sample, settings.holdout_percent, settings.validation_percent)
            if wanted <= 0:
                return
            if sample.identity in seen or part != "train" or unusable(sample) is not None:
                continue
            seen.add(sample.identity)
            wanted -= sample.emitted
            yield sample


def _replay_starts(plan: Plan, generator: random.Random) -> Iterator[str | None]:
    if plan.after_id is None or plan.oldest_id is None:
        return
    oldest, newest = (int(one.partition("-")[0]) for one in (plan.oldest_id, plan.after_id))
    if oldest > newest:
        return
    yield from (f"{generator.randint(oldest, newest) - 1}-0" for _ in range(MOST_CHUNKS))
