"""How far to speculate, with what, and whether at all: decided round by round from what was measured.

Pure: no torch, no models, no clock of its own.
"""
