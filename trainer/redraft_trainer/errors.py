"""Errors of the trainer, one tree.

RoundFailed
├── Diverged        a loss, a gradient or a weight is not finite, or the training runs away
├── ChildFailed     the training process ended with an error
│   └── OutOfMemory it could not get the memory that it needs
├── DiskFull        the round's files have no room
├── RoundTimeout    the round took longer than its limit
├── LockLost        another worker may run this domain now
└── NoUsableSamples nothing in the range can be learned from
"""

from __future__ import annotations


class RoundFailed(Exception):
    """A training round ended without a version. The message says why; the cursor has not moved."""


class Diverged(RoundFailed):
    """A loss, gradient or weight is not finite, or far outside of what a draft can have."""


class ChildFailed(RoundFailed):
    """The training process ended without a result."""


class OutOfMemory(ChildFailed):
    """The training process could not get the memory that it needs, or was ended for what it held."""


class DiskFull(RoundFailed):
    """The disk of the round's folder is full, or a quota is used up."""


class RoundTimeout(RoundFailed):
    """The round took longer than `round_time_limit_seconds`."""


class LockLost(RoundFailed):
    """The domain's lock could not be kept, so another worker may have begun a round."""


class NoUsableSamples(RoundFailed):
    """No sample of the range can be trained on."""
