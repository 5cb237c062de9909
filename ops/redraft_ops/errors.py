"""What the commands raise for a person to read.

OpsError
|-- UsageError            an argument is wrong                         exit 2
|-- ServerUnreachable     a server that a person waits for is away     exit 1
|-- EmbeddedValkeyError   the embedded server did not start            exit 1
|-- ChildEnded            a process that should run on has ended       exit 1
|-- RoundNotDone          a round that was asked for has failed        exit 1
|-- DemoFailed            the demo ran and did not show what it should exit 1
`-- BenchFailed           a part of a bench did not start or answer    exit 1
"""

from __future__ import annotations


class OpsError(Exception):
    """Root; the message is one sentence with the values and what to do."""


class UsageError(OpsError):
    """An argument is wrong."""


class ServerUnreachable(OpsError):
    """A server that a person waits for does not answer."""


class EmbeddedValkeyError(OpsError):
    """The embedded server did not start; the message says where its log is."""


class ChildEnded(OpsError):
    """A child process ended although it should run on; the message carries the end of its log."""


class RoundNotDone(OpsError):
    """A training round that was asked for ended without a result."""


class DemoFailed(OpsError):
    """The demo ran to its end and did not show what it should."""


class BenchFailed(OpsError):
    """A part of a bench did not start, or gave no answer."""
