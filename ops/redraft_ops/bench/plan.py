"""What a bench compares, and how much of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from redraft_ops.errors import UsageError

Kind = Literal["engine", "library", "peer"]
LIBRARY = ("generate", "assisted", "continuous_batching")
CAPTURE = "+capture"
_FIXED = re.compile(r"k(\d{1,2})")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}")


@dataclass(frozen=True)
class Configuration:
    """One way of answering the same prompts."""

    name: str
    kind: Kind
    setting: Literal["auto"] | int = "auto"
    """`num_speculative_tokens` of an engine's request."""
    capture: bool = False
    """The request may become a sample."""
    url: str = ""


@dataclass(frozen=True)
class Goal:
    """A latency goal that a request meets or misses. None: no goal."""

    first_token_ms: float | None = None
    token_ms: float | None = None

    @property
    def stated(self) -> bool:
        """True where there is any goal."""
        return self.first_token_ms is not None or self.token_ms is not None


@dataclass(frozen=True)
class BenchPlan:
    """Amounts of a run."""

    requests: int = 24
    """Per configuration and number of clients."""
    max_tokens: int = 64
    clients: tuple[int, ...] = (1,)
    compare: tuple[Configuration, ...] = ()
    dtypes: tuple[str, ...] = ("float32",)
    k: int = 3
    """Tokens that assisted generation proposes per round."""
    rate: float | None = None
    """Requests per second of an open loop; None: a closed loop of so many clients."""
    temperature: float = 0.0
    seed: int = 0
    ignore_eos: bool = False
    warm_up: int = 2
    """Requests per configuration and number of clients that nothing is counted of."""
    block: int | None = None
    """Requests that a configuration answers before the next has its turn."""
    max_seconds: float = 1800.0
    goal: Goal = field(default_factory=Goal)
    prefix_cache_mb: int = 0
    threads: int | None = None

    def block_size(self, clients: int) -> int:
        """One request at a time alone; with more clients two rounds of them, so that the last ones of a
        block, which run with fewer beside them, weigh less.
        """
        wanted = self.block or (1 if clients == 1 and self.rate is None else 2 * clients)
        return min(wanted, self.requests)

    @property
    def warm(self) -> int:
        """Requests to warm up with: at least one for each client, or none at all."""
        return max(self.warm_up, *self.clients) if self.warm_up else 0

    @property
    def prompts(self) -> int:
        """Prompts that a run can use without repeating any."""
        return self.requests * len(self.clients) + self.warm

    @property
    def most_speculative_tokens(self) -> int:
        """The largest fixed K that is compared."""
        return max((c.setting for c in self.compare if isinstance(c.setting, int)), default=0)


def configurations(compare: str, peers: Sequence[str] = ()) -> tuple[Configuration, ...]:
    """From `--compare off,auto,k3,generate` and `--peer NAME=URL`. Raises UsageError."""
    names = [name.strip() for name in compare.split(",") if name.strip()]
    found = [*map(_configuration, names), *map(_peer, peers)]
    repeated = {one.name for one in found if [other.name for other in found].count(one.name) > 1}
    if repeated:
        raise UsageError(f"{sorted(repeated)[0]} is compared twice; name each configuration once")
    if not found:
        raise UsageError("--compare names nothing; give for instance off,auto,k3")
    return tuple(found)


def _configuration(name: str) -> Configuration:
    base, capture = name.removesuffix(CAPTURE), name.endswith(CAPTURE)
    fixed = _FIXED.fullmatch(base)
    if base == "off" or (fixed and int(fixed[1]) == 0):
        return Configuration(name, "engine", 0, capture)
    if base == "auto":
        return Configuration(name, "engine", "auto", capture)
    if fixed:
        return Configuration(name, "engine", int(fixed[1]), capture)
    if name in LIBRARY:
        return Configuration(name, "library")
    raise UsageError(
        f"--compare {name} is unknown; choose from off, auto, k<N> (each also with {CAPTURE}), "
        f"{', '.join(LIBRARY)}"
    )


def _peer(text: str) -> Configuration:
    name, _, url = text.partition("=")
    if not _NAME.fullmatch(name) or not url.startswith(("http://", "https://")):
        raise UsageError(f"--peer {text} is not NAME=URL with an http(s) address")
    return Configuration(name, "peer", url=url.rstrip("/").removesuffix("/v1"))


def levels_of(clients: str, rate: float | None) -> tuple[int, ...]:
    """Numbers of clients; an open loop has none, and the largest only says how many rows the worker holds."""
    found = numbers(clients, "--clients")
    return found if rate is None else found[-1:]


def dtypes_of(text: str) -> tuple[str, ...]:
    """`float32,bfloat16`, each once. Raises UsageError."""
    from redraft_models.settings import DType

    found = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    wrong = [one for one in found if one not in get_args(DType)]
    if wrong:
        raise UsageError(f"--dtype {wrong[0] or text} is unknown; choose from {', '.join(get_args(DType))}")
    return found


def numbers(text: str, option: str) -> tuple[int, ...]:
    """`1,8` as rising different whole numbers from 1 on. Raises UsageError."""
    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < 1:
        raise UsageError(f"{option} {text} is not a list of whole numbers like 1,8")
    return tuple(found)
