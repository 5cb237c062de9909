"""Trials of draft versions on live traffic: the canary before a promotion, the watch after it."""
