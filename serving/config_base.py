"""What every section of ``exaserve.yaml`` is made of: strictness and the common kinds of values."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(gt=0, le=3600, description="seconds")]
Port = Annotated[int, Field(ge=1, le=65535)]
Host = Annotated[str, Field(pattern=r"^[0-9A-Za-z.:_-]{1,255}$", description="address to listen on")]
HostPort = Annotated[str, Field(pattern=r"^[0-9A-Za-z._-]{1,253}:[0-9]{1,5}$", description="host:port")]


class Section(BaseModel):
    # Strict: YAML already has types, and `port: yes` must not become port 1.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


Size = Annotated[
    str, Field(pattern=r"^[1-9][0-9]*[kKmMgGtT]?$", description="bytes, like 256M or 4G (powers of 1024)")
]
#: A path as the user wrote it; relative ones are taken from the configuration file's folder.
FilePath = Annotated[str, Field(min_length=1, max_length=4096, pattern=r"^[^\x00]+$")]


def size_in_bytes(text: str) -> int:
    """``256M`` -> 268435456. Raises ValueError on anything that Size does not allow."""
    unit = "kmgt".find(text[-1].lower())
    return int(text[:-1]) * 1024 ** (unit + 1) if unit >= 0 else int(text)
