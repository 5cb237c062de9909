"""From an exception to one sentence and an exit code: 2 = the caller has to change something, 1 = it
failed.
"""

from __future__ import annotations


def explained(error: Exception) -> tuple[int, str] | None:
    """(exit code, sentence) of a failure that is ours to explain; None for a fault in the program.

    The modules imported here hold only exception classes.
    """
    wrong, failed = _wrong(), _failed()
    if isinstance(error, wrong):
        return 2, _line(error)
    if isinstance(error, failed):
        return 1, _line(error)
    return None


def _wrong() -> tuple[type[Exception], ...]:
    from redraft_models.errors import IncompatiblePair, SourceError
    from redraft_queue.errors import BadName, BadUrl
    from redraft_serving.actions import UnknownVersion

    from redraft_ops.errors import UsageError
    from redraft_ops.settings import SettingsError

    return (SettingsError, IncompatiblePair, SourceError, UsageError, BadName, BadUrl, UnknownVersion)


def _failed() -> tuple[type[Exception], ...]:
    from redraft_models.errors import ModelsError
    from redraft_queue.errors import QueueError
    from redraft_serving.actions import ActionError
    from redraft_serving.errors import ServingError
    from redraft_trainer.errors import RoundFailed

    from redraft_ops.errors import OpsError

    return (ModelsError, QueueError, RoundFailed, ServingError, ActionError, OpsError)


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
