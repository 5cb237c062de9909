"""The loop under drifting traffic: what `redraft demo --drift` runs."""
