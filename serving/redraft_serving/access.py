"""Settings of who may ask: keys, and the domains that each of them is bound to."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from redraft_queue.keys import check_name

_SENDABLE = re.compile(r"[!-~]{1,512}")
"""What a header can carry as one word."""


def _sendable(key: SecretStr) -> SecretStr:
    secret = key.get_secret_value()
    if not secret:
        raise ValueError("it is empty; leave it out to serve without a key")
    if not _SENDABLE.fullmatch(secret):
        raise ValueError("a key is 1 to 512 visible ASCII characters without spaces")
    return key


def _names(value: object) -> object:
    if value == "*":
        return value
    if not isinstance(value, list | tuple) or not value or not all(isinstance(one, str) for one in value):
        raise ValueError('give a list of at least one domain, or "*" for all of them')
    for domain in value:
        check_name(domain)
    return tuple(value)


Secret = Annotated[SecretStr, AfterValidator(_sendable)]
Bound = Annotated[Literal["*"] | tuple[str, ...], BeforeValidator(_names)]


class ApiKey(BaseModel):
    """One of several keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    key: Secret
    domains: Bound = "*"
    """Domains that it may name; the first is meant where a request names none. "*": all of them."""
    store: bool = True
    """False: no request of this key is kept for training."""


def check_keys(keys: dict[str, ApiKey]) -> dict[str, ApiKey]:
    """Raises ValueError for a name that no log line can carry, and for two keys with one secret."""
    for name in keys:
        check_name(name)
    if len({key.key.get_secret_value() for key in keys.values()}) < len(keys):
        raise ValueError("two of the keys are the same; nobody could tell whose request it is")
    return keys


ApiKeys = Annotated[dict[str, ApiKey], AfterValidator(check_keys), Field(repr=False)]
