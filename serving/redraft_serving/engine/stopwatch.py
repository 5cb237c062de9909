"""How long the parts of a round took, without making the device wait for the host."""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Marks in order; `spans` gives the seconds between them. One watch serves one round."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._marks: list[float] = []
        self._events: list[torch.cuda.Event] = []
        self.mark()

    def mark(self) -> None:
        """One part ends here, another begins."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            self._events.append(event)
        else:
            self._marks.append(time.perf_counter())

    def spans(self) -> list[float]:
        """Seconds between neighbouring marks; on a GPU, once the last of them is reached."""
        if not self._cuda:
            return [after - before for before, after in zip(self._marks, self._marks[1:], strict=False)]
        self._events[-1].synchronize()
        pairs = zip(self._events, self._events[1:], strict=False)
        return [before.elapsed_time(after) / 1000 for before, after in pairs]
