"""The records that cross a process border. Standard library and msgpack only.

A `Sample` is one finished choice of one request: what was asked, what the target emitted, what happened to
the draft's proposals, and the target's law at every emitted position. Arrays travel as little-endian bytes
(ids int32, log-probabilities float16) so that a reader can view them without parsing.
"""

from __future__ import annotations

import array
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import msgpack

SCHEMA = 1
OUTCOMES = ("accepted", "corrected", "bonus", "plain")


class UnreadableSample(ValueError):
    """A stream entry that is not a Sample of this schema; the message is its dead-letter reason."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """The request's sampling settings. `reproducible` is false where the logged law can't be re-applied to a draft."""

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
        """True where the draft's law needs no penalty or bias: training and the gate use only such samples."""
        plain = self.presence_penalty == 0.0 and self.frequency_penalty == 0.0 and self.repetition_penalty == 1.0
        return plain and not self.has_logit_bias
