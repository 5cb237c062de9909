"""Benches: scripts that compare configurations side by side in one run. Never part of the tests."""
