"""What the supervisor has to know of one part of the deployment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Service:
    """One part: how it is started, when it is ready, and how it is ended.

    `ready(pid)` answers within about a second and raises nothing but OSError, which means no. `environment`
    is added to the supervisor's own. Parts are started in order, those with `first` before the others, and
    stopped from the front of the list to its end.
    """

    name: str
    command: Sequence[str]
    ready: Callable[[int], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    first: bool = False
    """The others are started once it is ready."""
    grace_seconds: float = 15.0
    """Time between SIGTERM and SIGKILL."""
    whole_group: bool = False
    """SIGTERM goes to all its processes, not to the first alone."""
