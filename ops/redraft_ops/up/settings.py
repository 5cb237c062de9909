"""Settings of `redraft up`."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field


class UpSettings(BaseModel):
    """Built at the entry point and passed down; units are in the names."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mlflow_port: int = Field(5000, ge=0, le=65535)
    """Port of the embedded MLflow's pages on the loopback; the next free one if taken, 0 = any free one."""
    log_max_mb: float = Field(20.0, gt=0)
    """Size at which a part's log file is put aside."""
    log_files_kept: int = Field(3, ge=0)
    """Log files put aside that are kept, per part."""
