"""Keep transformers' progress bars out of our logs: a command shows its own progress, or none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from transformers.utils import logging as transformers_logging


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Inside, transformers shows no bars for loading and saving; the setting before is restored."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()
