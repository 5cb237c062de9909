"""Settings of the stream, the lock, and Celery."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class QueueSettings(BaseModel):
    """Built at the entry point and passed down; units are in the names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stream_maxlen: int = Field(100_000, gt=0)
    """Samples kept per domain; above 1,000 the cut is approximate and leaves up to one node (100) more."""
    stream_max_age_seconds: float | None = Field(None, gt=0)
    """Samples older than this are trimmed too; none = no age limit."""
    dead_maxlen: int = Field(1_000, gt=0)
    """Dead letters kept per domain; the count of all goes on."""
    visibility_timeout_seconds: int = Field(6 * 3600, gt=0)
    """A task not acknowledged after this long is delivered again: several times the round's time limit, and
    longer than the lock's ttl, so that a dead worker's lock is gone when its task comes back."""
    round_time_limit_seconds: int = Field(3600, gt=0)
    """A training round is ended after this long."""
    lock_ttl_seconds: float = Field(60.0, gt=0)
    """A round's lock outlives its dead holder by at most this long."""
    heartbeat_ttl_seconds: float = Field(15.0, gt=0)
    """A process counts as gone when its sign of life is older than this."""
    schedule_seconds: float = Field(900.0, gt=0)
    """Period at which beat asks for a training round of each domain."""
    min_new_tokens: int = Field(20_000, ge=0)
    """Output tokens that must be new since the last round, else the round is skipped."""
    socket_timeout_seconds: float = Field(2.0, gt=0)
    """No call to Redis takes longer."""
