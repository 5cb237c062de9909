"""`redraft beat`: the clock that asks for training rounds. Of several, one asks for each round."""

from __future__ import annotations


def beat() -> None:
    """Ask for training rounds of every domain by its schedule, new tokens and falling acceptance."""
    from redraft_ops.logs import configure_logging
    from redraft_ops.settings import load_settings
    from redraft_ops.stack import open_stack

    settings = load_settings()
    configure_logging()
    with open_stack(settings) as stack:
        stack.require_redis()
        from redraft_ops.launch import run_clock

        run_clock(stack)
