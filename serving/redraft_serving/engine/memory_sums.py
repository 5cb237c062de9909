"""What follows from a memory report: sums, what the draft costs in slots, and a sentence for people."""

from __future__ import annotations

from redraft_serving.engine.interface import MemoryReport

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def caches(report: MemoryReport) -> int:
    """Bytes of all slots, of both models."""
    return report.slots * (report.target_cache_per_slot + report.draft_cache_per_slot)


def held(report: MemoryReport) -> int:
    """Bytes held now."""
    return report.target + report.draft + caches(report) + report.prefix_cache


def at_most(report: MemoryReport) -> int:
    """Bytes held once the prefix cache is full."""
    return held(report) + max(0, report.prefix_cache_limit - report.prefix_cache)


def draft_slots(report: MemoryReport) -> float | None:
    """How many more slots a server without the draft could have in the same memory."""
    if not report.target_cache_per_slot:
        return None
    draft = report.draft + report.slots * report.draft_cache_per_slot
    return draft / report.target_cache_per_slot


def describe(report: MemoryReport) -> str:
    """One sentence for a log: where the memory goes, and what the draft costs."""
    parts = [f"target {size(report.target)}"]
    slot = size(report.target_cache_per_slot)
    if report.draft:
        parts.append(f"draft {size(report.draft)}")
        slot += f" + {size(report.draft_cache_per_slot)}"
    parts.append(f"caches {report.slots} slots x {slot}")
    if report.prefix_cache_limit:
        parts.append(f"prefix cache up to {size(report.prefix_cache_limit)}")
    cost = draft_slots(report)
    end = f"; the draft costs as much as {cost:.1f} slots" if cost else ""
    return f"{', '.join(parts)}: {size(at_most(report))} in all{end}"


def size(count: float) -> str:
    """Bytes in the unit in which they have one to four digits before the point: 513 MiB, 1.4 GiB."""
    for unit in _UNITS:
        if abs(count) < 1024 or unit == _UNITS[-1]:
            break
        count /= 1024
    number = f"{count:.0f}" if count >= 100 else f"{count:.1f}".removesuffix(".0")
    return f"{number} {unit}"
