"""What a serving worker raises at its start.

ServingError
└── CannotListen   host and port can't be bound
"""

from __future__ import annotations


class ServingError(Exception):
    """Root of what the start of a serving worker raises beside the errors of models and queue."""


class CannotListen(ServingError):
    """Host and port can't be bound."""
