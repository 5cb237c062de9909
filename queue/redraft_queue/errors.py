"""What this package raises.

QueueError
├── UnreadableSample   a stream entry that is not a Sample (also a ValueError)
├── BadName            a domain or role that can't be part of a key (also a ValueError)
├── StreamUnavailable  Redis can't be reached, is full, or answers with an error
├── LockHeld           another training round of the domain is running
└── RoundInterrupted   the worker is stopping; the round is to end and will be delivered again
"""

from __future__ import annotations


class QueueError(Exception):
    """Root of what this package raises."""


class UnreadableSample(QueueError, ValueError):
    """A stream entry that is not a Sample of this schema; the message is its dead-letter reason."""


class BadName(QueueError, ValueError):
    """A domain or role with characters that a key can't carry."""


class BadUrl(QueueError, ValueError):
    """A Redis URL that can't be used; the message doesn't repeat it, since it may hold a password."""


class StreamUnavailable(QueueError):
    """Redis can't be reached, is full, or refuses; `written` samples of an append were stored."""

    def __init__(self, message: str, written: int = 0) -> None:
        super().__init__(message)
        self.written = written


class LockHeld(QueueError):
    """Another round holds the domain's lock; `holder` is that round's id."""

    def __init__(self, domain: str, holder: str) -> None:
        super().__init__(f"round {holder} of domain {domain} is running; wait until it ends")
        self.domain = domain
        self.holder = holder


class RoundInterrupted(QueueError):
    """Raised by the progress callback when the worker is to stop; the task goes back to the queue."""
