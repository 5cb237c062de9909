"""Settings of the stream, the lock, and Celery."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from redraft_queue.keys import check_name


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
    """Period at which beat asks for a training round of each domain that has no schedule of its own."""
    schedules: dict[str, float | str] = {}
    """Schedules of single domains: seconds, or a crontab in UTC, like {"support": "0 3 * * *"}."""
    new_tokens_trigger: int | None = Field(None, gt=0)
    """So many new output tokens ask for a round before the clock does (never fewer than min_new_tokens);
    none = by the clock alone."""
    drop_trigger: float | None = Field(0.05, gt=0, le=1)
    """Fall of live acceptance, short below long moving average, that asks for a round; none = never."""
    drop_min_tested: int = Field(2_000, gt=0)
    """Tested tokens behind the moving averages before a fall is believed."""
    max_backoff_seconds: float = Field(24 * 3600.0, gt=0)
    """Limit of the wait, which doubles with each round that ends without a sure gain."""
    schedule_min_seconds: float = Field(60.0, gt=0)
    """New tokens and falling acceptance ask at least this long after the last asked round of the domain."""
    tick_seconds: float = Field(5.0, gt=0)
    """Beat looks at all domains at least this often."""
    min_new_tokens: int = Field(20_000, ge=0)
    """Output tokens that must be new since the last round, else the round is skipped."""
    socket_timeout_seconds: float = Field(2.0, gt=0)
    """No call to Redis takes longer."""

    @field_validator("schedules")
    @classmethod
    def _readable_schedules(cls, value: dict[str, float | str]) -> dict[str, float | str]:
        from redraft_queue.clock import clock_of

        for domain, schedule in value.items():
            check_name(domain)
            try:
                clock_of(schedule)
            except ValueError as error:
                raise ValueError(f"domain {domain}: {error}") from error
        return value
