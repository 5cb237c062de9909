"""Settings of the models section: which target and draft, and how they are held in memory."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

DType = Literal["auto", "float32", "bfloat16", "float16"]


class ModelSettings(BaseModel):
    """Target, draft and how they are loaded. A source is "default", a hub id, a folder or a .gguf file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    target: str = Field("default", min_length=1, description="the model whose law is served")
    draft: str = Field(
        "default", min_length=1, description='the model that proposes; "none" switches speculation off'
    )
    dtype: DType = Field(
        "float32",
        description="of the weights in memory, target and draft alike; "
        '"auto" takes the faster of float32 and bfloat16 as measured at the start',
    )
    device: str = Field(
        "auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$", description='"auto" takes cuda where there is one'
    )
    max_model_len: int = Field(2048, gt=0, description="tokens of prompt and answer together")
