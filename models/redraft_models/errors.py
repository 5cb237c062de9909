"""What redraft_models raises.

    ModelsError
    ├── SourceError            a model can't be found, read or converted
    ├── IncompatiblePair       target and draft can't serve together
    ├── AdapterRejected        an adapter folder isn't what it has to be
    │   └── AdapterSpoilt          this copy isn't what was recorded; another may be
    └── RegistryError          the registry refused
        └── RegistryUnavailable    the registry doesn't answer

Every message is one sentence (or two) with the values that disagree and what to do.
"""

from __future__ import annotations


class ModelsError(Exception):
    """Root of this package's errors."""


class SourceError(ModelsError):
    """A model source can't be found, read or converted."""


class IncompatiblePair(ModelsError):
    """Target and draft can't serve together."""


class AdapterRejected(ModelsError):
    """An adapter folder is not a whole, finite adapter of the expected base draft."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class AdapterSpoilt(AdapterRejected):
    """A copy is not what was recorded: it may have been spoilt on its way, and a fresh one may be whole.

    Its sha256 differs, or it is not JSON where JSON is due, since no sha256 of such files is recorded.
    """


class RegistryError(ModelsError):
    """The registry refused, or holds something that we don't accept."""


class RegistryUnavailable(RegistryError):
    """The registry doesn't answer in time; whoever asks keeps what it has."""
