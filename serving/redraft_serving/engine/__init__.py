"""The serving engine: draft, verify, accept, commit."""
