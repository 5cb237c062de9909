"""Logging of long-running commands: one line per event, on standard error."""

from __future__ import annotations

import logging.config

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def configure_logging(level: str = "INFO") -> None:
    """Set up the standard library's logging once, at an entry point."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"line": {"format": FORMAT}},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
            "root": {"level": "WARNING", "handlers": ["stderr"]},
            "loggers": {
                name: {"level": level}
                for name in (
                    "redraft_serving",
                    "redraft_trainer",
                    "redraft_queue",
                    "redraft_models",
                    "redraft_ops",
                    "celery",
                )
            },
        }
    )
