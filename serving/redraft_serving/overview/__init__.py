"""What one glance at a deployment needs: this worker's last days, and the loop's facts."""

from redraft_serving.overview.overview import Overview
from redraft_serving.overview.times import DecodeTimes

__all__ = ["DecodeTimes", "Overview"]
