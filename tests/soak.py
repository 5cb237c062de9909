"""Mixed traffic for half an hour with a swap every minute: does anything grow, does any stream stand still?

    python tests/soak.py --minutes 30 --swap-every 60 --out redraft-soak

Prints a table of both halves and a verdict, writes `soak.json` and `soak.png` into `--out`, and exits with 1
where the verdict is no.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from redraft_models.toy import LEARN_WORDS, write_toy_pair

from tests.faults.adapters import Adapters
from tests.faults.deployment import Deployment, Process
from tests.faults.probes import metric, served, until
from tests.soak_traffic import DOMAINS, Load

SAMPLE_SECONDS = 2.0
STREAM_MAXLEN, PREFIX_CACHE_MB = "200", "4"
"""Small, so that what is meant to fill is full early."""
ADAPTERS_PER_DOMAIN = 3
FOLLOW_SECONDS = 60.0
LONGEST_PAUSE_ROUNDS = 3.0
SWAP_WINDOW_SECONDS = 2.0

GROWTH = {"rss_mb": 0.03, "descriptors": 0.1, "threads": 0.1, "redis_mb": 0.03}
"""Growth over the second half, by the line fitted through it, as a share of the level."""


@dataclass
class Sample:
    """One look at the serving worker and at Redis."""

    seconds: float
    rss_mb: float
    descriptors: int
    threads: int
    redis_mb: float


def look(began: float, process: Process, place: Deployment) -> Sample:
    """What they hold now."""
    folder = Path(f"/proc/{process.pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line)
    with place.valkey.client() as client:
        used = int(client.info("memory")["used_memory"])
    return Sample(
        seconds=time.monotonic() - began,
        rss_mb=int(status["VmRSS"].split()[0]) / 1024,
        descriptors=len(list((folder / "fd").iterdir())),
        threads=int(status["Threads"]),
        redis_mb=used / 2**20,
    )


def swaps(place: Deployment, adapters: Adapters) -> list[tuple[str, int]]:
    """Versions of all domains, made before; the alias only has to move."""
    registry = place.registry()
    made = [
        (domain, adapters.register(registry, 10 * number + one, domain=domain))
        for one in range(ADAPTERS_PER_DOMAIN)
        for number, domain in enumerate(DOMAINS)
    ]
    return made


def run(arguments: argparse.Namespace, place: Deployment, adapters: Adapters) -> dict[str, object]:
    """The soak; returns all that was seen."""
    process = place.serve()
    place.ready(process)
    versions, registry = swaps(place, adapters), place.registry()
    load = Load(process.url, LEARN_WORDS)
    gc.freeze()  # what stands still here would look like a stream that does
    load.start()
    began = time.monotonic()
    samples: list[Sample] = []
    moments: list[float] = []
    while (now := time.monotonic() - began) < arguments.minutes * 60:
        if now >= (len(moments) + 1) * arguments.swap_every:
            domain, version = versions[len(moments) % len(versions)]
            registry.promote(domain, version)
            until(lambda d=domain, v=version: served(process.url, d) == v, FOLLOW_SECONDS, "no swap")  # type: ignore[misc]
            moments.append(time.time())
        samples.append(look(began, process, place))
        time.sleep(SAMPLE_SECONDS)
    load.stop()
    return {
        "samples": [asdict(sample) for sample in samples],
        "gaps": load.gaps,
        "swaps": moments,
        "requests": dict(load.counts),
        "failures": load.failures,
        "swaps_counted": metric(process.url, "redraft_swaps_total"),
    }


def halves(seen: dict[str, object]) -> list[tuple[str, float, float, float]]:
    """(what, mean of the first half, of the second, growth over the second as a share)."""
    samples = [Sample(**sample) for sample in seen["samples"]]  # type: ignore[attr-defined]
    half = len(samples) // 2
    rows = []
    for name in GROWTH:
        values = np.array([getattr(sample, name) for sample in samples], dtype=float)
        times = np.array([sample.seconds for sample in samples])[half:]
        slope = float(np.polyfit(times, values[half:], 1)[0])
        growth = slope * float(times[-1] - times[0]) / float(values[half:].mean())
        rows.append((name, float(values[:half].mean()), float(values[half:].mean()), growth))
    return rows


def pauses(seen: dict[str, object]) -> dict[str, float]:
    """Gaps of streams, in seconds: usual, high percentiles, and the longest near a swap and elsewhere."""
    ends, gaps = (np.array(part, dtype=float) for part in zip(*seen["gaps"], strict=True))  # type: ignore[misc]
    swapped = np.array(seen["swaps"], dtype=float)
    near = np.zeros(len(ends), dtype=bool)
    for moment in swapped:
        near |= np.abs(ends - moment) < SWAP_WINDOW_SECONDS
    return {
        "usual": float(np.median(gaps)),
        "p99": float(np.percentile(gaps, 99)),
        "p99.9": float(np.percentile(gaps, 99.9)),
        "p99.9 near a swap": float(np.percentile(gaps[near], 99.9)) if near.any() else 0.0,
        "longest": float(gaps.max()),
        "longest near a swap": float(gaps[near].max()) if near.any() else 0.0,
        "longest elsewhere": float(gaps[~near].max()),
    }


def report(seen: dict[str, object]) -> bool:
    """Print the table and the verdict; True if all is flat and nothing failed."""
    say = sys.stdout.write
    fine = not seen["failures"]
    say(f"requests {seen['requests']}, failures {len(seen['failures'])}, swaps {seen['swaps_counted']:g}\n")  # type: ignore[arg-type]
    say(f"{'':14}{'first half':>12}{'second half':>12}{'growth':>9}{'limit':>8}\n")
    for name, first, second, growth in halves(seen):
        flat = growth <= GROWTH[name]
        fine = fine and flat
        verdict = "flat" if flat else "GROWS"
        say(f"{name:14}{first:12.2f}{second:12.2f}{growth:9.2%}{GROWTH[name]:8.0%}  {verdict}\n")
    found = pauses(seen)
    for name, seconds in found.items():
        say(f"stream gap, {name:20}{seconds * 1000:9.1f} ms {seconds / found['usual']:6.1f} usual rounds\n")
    bound = max(LONGEST_PAUSE_ROUNDS * found["usual"], found["longest elsewhere"])
    fine = fine and found["longest near a swap"] <= bound
    say(
        f"limit near a swap: {bound * 1000:.1f} ms (three usual rounds, or what the machine does elsewhere)\n"
    )
    say(f"verdict: {'flat, and nothing failed' if fine else 'NOT flat, or something failed'}\n")
    return fine


def picture(seen: dict[str, object], path: Path) -> None:
    """Memory, descriptors, threads and Redis over time, with the swaps."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    samples = [Sample(**sample) for sample in seen["samples"]]  # type: ignore[attr-defined]
    minutes = [sample.seconds / 60 for sample in samples]
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 6), sharex=True, layout="constrained")
    titles = ("Memory of the worker, MiB", "Its file descriptors", "Its threads", "Memory of Redis, MiB")
    for axis, name, title in zip(axes.flat, GROWTH, titles, strict=True):
        values = [getattr(sample, name) for sample in samples]
        axis.plot(minutes, values, color="#1f5fa8", linewidth=1.2)
        axis.axvline(minutes[-1] / 2, color="#999999", linestyle=":", linewidth=1)
        axis.set_title(title, loc="left", fontsize=10)
        axis.set_ylim(0, 1.25 * max(values))
        axis.grid(alpha=0.3)
    for axis in axes[1]:
        axis.set_xlabel("minutes")
    figure.savefig(path, dpi=120)


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--swap-every", type=float, default=60, help="seconds")
    parser.add_argument("--out", type=Path, default=Path("redraft-soak"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        pair = write_toy_pair(folder / "pair", "learn")
        place = Deployment.make(
            folder / "place",
            pair,
            QUEUE__STREAM_MAXLEN=STREAM_MAXLEN,
            SERVING__PREFIX_CACHE_MB=PREFIX_CACHE_MB,
            SERVING__PROPOSERS='["draft", "ngram", "prediction"]',
        )
        try:
            place.start_servers()
            seen = run(arguments, place, Adapters(pair, folder / "adapters"))
        finally:
            place.close()
    (arguments.out / "soak.json").write_text(json.dumps(seen))
    picture(seen, arguments.out / "soak.png")
    return 0 if report(seen) else 1


if __name__ == "__main__":
    sys.exit(main())
