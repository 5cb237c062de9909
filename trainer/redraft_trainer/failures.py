"""What an error of a library means for a round, in one sentence that says what to do."""

from __future__ import annotations

import errno

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FULL_WORDS = ("No space left on device", "Disk quota exceeded", "File too large")
_MEMORY_WORDS = ("out of memory", "can't allocate memory", "Cannot allocate memory", "bad allocation")
MEMORY_ADVICE = "lower batch_size or max_sequence_length, or give the machine more memory"
DISK_ADVICE = "free space there or move data_dir; the samples stay in the stream for the next round"


def disk_is_full(error: BaseException) -> bool:
    """Whether an error says that a file could not grow; some libraries tell it in words only."""
    number = error.errno if isinstance(error, OSError) else None
    return number in _FULL or any(words in str(error) for words in _FULL_WORDS)


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory could not be had: Python's, torch's own, or a CUDA device's."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in _MEMORY_WORDS)


def told(error: BaseException, peak_mb: int) -> tuple[str, str]:
    """(kind, sentence) of what ended a training; the kinds are the names of our errors.

    Errors of ours are sentences already.
    """
    name = type(error).__name__
    if type(error).__module__.startswith("redraft_"):
        return name, str(error)
    first = str(error).strip().partition("\n")[0]
    if disk_is_full(error):
        return "DiskFull", f"the training could not write its files ({name}: {first}): {DISK_ADVICE}"
    if out_of_memory(error):
        held = f"out of memory with {peak_mb} MB at its peak"
        return "OutOfMemory", f"the training ran {held} ({name}: {first}): {MEMORY_ADVICE}"
    return name, f"{name}: {error}"
