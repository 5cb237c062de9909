"""The records that cross a process border. Standard library and msgpack only.

A `Sample` is one finished choice of one request: what was asked, what the target emitted, what happened to
the draft's proposals, and the target's law at every emitted position. Arrays travel as little-endian bytes
(ids int32, log-probabilities float16) so that a reader can view them without parsing:
`numpy.frombuffer(sample.topk_logprobs, "<f2").reshape(sample.emitted, sample.top_k_logged)`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import msgpack

from redraft_queue import wire
from redraft_queue.errors import UnreadableSample

__all__ = [
    "BASE",
    "OUTCOMES",
    "SCHEMA",
    "Sample",
    "Sampling",
    "UnreadableSample",
    "bytes_to_ids",
    "ids_to_bytes",
    "user_hash",
]

SCHEMA = 2
"""2 added `user`. Workers that read are to be updated before those that write."""
READABLE = (1, 2)
OUTCOMES = ("accepted", "corrected", "bonus", "plain")
HOTTEST = 1e6
"""Highest temperature that is believed; a law at 1e39 is no number in float32."""
MOST_TOP_K = 2**31 - 1
BASE = "base"
"""The name of the pristine base draft where a version is expected."""

bytes_to_ids = wire.bytes_to_ids
ids_to_bytes = wire.ids_to_bytes


def user_hash(name: str) -> str:
    """What a sample keeps of a client's name for its user: 16 bytes of BLAKE2b in hex, equal everywhere. It
    is no secret: whoever has a list of names can hash them too.
    """
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True)
class Sampling:
    """The request's sampling settings."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    has_logit_bias: bool = False

    @property
    def reproducible(self) -> bool:
        """True where no penalty or bias shaped the law: training and the gate use only such samples."""
        plain = (
            self.presence_penalty == 0.0 and self.frequency_penalty == 0.0 and self.repetition_penalty == 1.0
        )
        return plain and not self.has_logit_bias


@dataclass(frozen=True, slots=True)
class Sample:
    """One finished choice: E = `emitted` positions, k = `top_k_logged` logged tokens at each.

    The law at position i is the target's for `output_ids[i]` given the prompt and `output_ids[:i]`:
    softmax of the logits after penalties and bias, before temperature and cut-offs.
    """

    request_id: str
    domain: str
    created_ms: int
    target_fingerprint: str
    tokenizer_fingerprint: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    topk_ids: bytes
    """int32 [E, k]"""
    topk_logprobs: bytes
    """float16 [E, k]; -inf where a token is impossible."""
    tail_mass: bytes
    """float16 [E]: the probability that the k logged tokens leave to all others."""
    top_k_logged: int
    choice: int = 0
    """Index of this choice in its request; (request_id, choice) is a sample's identity."""
    sampling: Sampling = field(default_factory=Sampling)
    draft_version: tuple[tuple[int | str, int], ...] = ()
    """Runs of (registry version or "base", rounds)."""
    outcome: tuple[str, ...] = ()
    """One of OUTCOMES per emitted token; empty where the engine doesn't tell."""
    drafted_id: tuple[int, ...] = ()
    """What the draft had proposed at each position, -1 where nothing; empty where the engine doesn't tell."""
    finish_reason: str = "stop"
    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    rounds: int = 0
    proposed: int = 0
    tested: int = 0
    user: str | None = None
    """`user_hash` of whose request it was; None where nobody told."""
    schema: int = SCHEMA

    @property
    def emitted(self) -> int:
        """Number of emitted tokens, E."""
        return len(self.output_ids)

    @property
    def accepted(self) -> int:
        """Emitted tokens that were the draft's own; over `tested` it is this choice's live acceptance."""
        return self.outcome.count("accepted")

    @property
    def identity(self) -> tuple[str, int]:
        """What duplicates share: (request_id, choice)."""
        return self.request_id, self.choice

    @property
    def prompt_hash(self) -> int:
        """64-bit hash of the prompt, equal everywhere; held out is `prompt_hash % 100 < holdout_percent`."""
        return int.from_bytes(hashlib.sha256(ids_to_bytes(self.prompt_ids)).digest()[:8], "big")

    def pack(self) -> bytes:
        """The msgpack map that goes into the stream. Raises ValueError for an id outside int32."""
        # First what an entry is looked for by: of one that can't be read, only the start may be kept.
        document: dict[str, Any] = {"request_id": self.request_id, "user": self.user}
        document |= {item.name: getattr(self, item.name) for item in fields(self)}
        if self.user is None:
            del document["user"]
        for name in ("prompt_ids", "output_ids", "drafted_id"):
            document[name] = ids_to_bytes(document[name])
        document["outcome"] = bytes(OUTCOMES.index(name) for name in self.outcome)
        document["sampling"] = asdict(self.sampling)
        packed: bytes = msgpack.packb(document, use_bin_type=True)
        return packed

    @classmethod
    def unpack(cls, data: bytes) -> Sample:
        """Read and check a packed Sample; keys that this schema doesn't know are ignored.

        Raises UnreadableSample, in one sentence: not msgpack, another schema, a field that is missing or
        of the wrong type, negative ids, array lengths that disagree, a law that isn't one.
        """
        sample = _build(wire.Reader(_document(data)))
        _check(sample)
        return sample


def _document(data: bytes) -> Mapping[str, Any]:
    try:
        document = msgpack.unpackb(data, raw=False)
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as error:
        raise UnreadableSample(
            f"the entry of {len(data)} bytes is not msgpack ({type(error).__name__})"
        ) from error
    if not isinstance(document, dict):
        raise UnreadableSample(f"the entry is a msgpack {type(document).__name__}, not a map")
    schema = document.get("schema")
    if type(schema) is not int or schema not in READABLE:  # True equals 1
        raise UnreadableSample(f"schema {schema!r:.40} is none of {READABLE}, which this version reads")
    return document


def _outcomes(codes: bytes) -> tuple[str, ...]:
    if any(code >= len(OUTCOMES) for code in codes):
        raise UnreadableSample(f"outcome holds the code {max(codes)}, but codes end at {len(OUTCOMES) - 1}")
    return tuple(OUTCOMES[code] for code in codes)


def _sampling(read: wire.Reader) -> Sampling:
    defaults = Sampling()
    return Sampling(
        temperature=read.number("temperature", defaults.temperature, 0.0, HOTTEST),
        top_p=read.number("top_p", defaults.top_p, 0.0, 1.0),
        top_k=int(read.number("top_k", defaults.top_k, -1, MOST_TOP_K)),
        min_p=read.number("min_p", defaults.min_p, 0.0, 1.0),
        presence_penalty=read.number("presence_penalty", defaults.presence_penalty),
        frequency_penalty=read.number("frequency_penalty", defaults.frequency_penalty),
        repetition_penalty=read.number("repetition_penalty", defaults.repetition_penalty),
        has_logit_bias=read.flag("has_logit_bias", defaults.has_logit_bias),
    )


def _build(read: wire.Reader) -> Sample:
    return Sample(
        request_id=read.text("request_id"),
        domain=read.text("domain"),
        created_ms=read.count("created_ms"),
        target_fingerprint=read.text("target_fingerprint"),
        tokenizer_fingerprint=read.text("tokenizer_fingerprint"),
        prompt_ids=read.ids("prompt_ids"),
        output_ids=read.ids("output_ids"),
        topk_ids=read.raw("topk_ids"),
        topk_logprobs=read.raw("topk_logprobs"),
        tail_mass=read.raw("tail_mass"),
        top_k_logged=read.count("top_k_logged"),
        choice=read.count("choice", 0),
        sampling=_sampling(read.map("sampling")),
        draft_version=read.runs("draft_version"),
        outcome=_outcomes(read.raw("outcome", b"")),
        drafted_id=read.ids("drafted_id", b""),
        finish_reason=read.text("finish_reason", "stop"),
        queue_seconds=read.number("queue_seconds", 0.0),
        prefill_seconds=read.number("prefill_seconds", 0.0),
        decode_seconds=read.number("decode_seconds", 0.0),
        rounds=read.count("rounds", 0),
        proposed=read.count("proposed", 0),
        tested=read.count("tested", 0),
        user=read.optional_text("user"),
    )


def _check(sample: Sample) -> None:
    if not sample.prompt_ids or not sample.output_ids or not sample.top_k_logged:
        raise UnreadableSample(
            f"prompt_ids, output_ids and top_k_logged must not be empty, but are {len(sample.prompt_ids)}, "
            f"{sample.emitted} and {sample.top_k_logged}"
        )
    emitted, logged = sample.emitted, sample.emitted * sample.top_k_logged
    wire.check_lengths(
        {
            "topk_ids": (len(sample.topk_ids), logged * wire.ID_BYTES),
            "topk_logprobs": (len(sample.topk_logprobs), logged * wire.HALF_BYTES),
            "tail_mass": (len(sample.tail_mass), emitted * wire.HALF_BYTES),
            "outcome": (len(sample.outcome), emitted if sample.outcome else 0),
            "drafted_id": (len(sample.drafted_id), emitted if sample.drafted_id else 0),
        }
    )
    wire.check_ids(sample.prompt_ids, "prompt_ids")
    wire.check_ids(sample.output_ids, "output_ids")
    wire.check_ids(sample.drafted_id, "drafted_id", lowest=-1)
    wire.check_packed_ids(sample.topk_ids, "topk_ids")
    wire.check_logprobs(sample.topk_logprobs, "topk_logprobs")
    wire.check_masses(sample.tail_mass, "tail_mass")
