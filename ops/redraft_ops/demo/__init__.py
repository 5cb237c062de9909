"""`redraft demo`: the whole loop on one machine, with its own evidence.

plan.py      every number of a run
prompts.py   prompts from the standard library's functions, or of a toy's words
client.py    streamed requests over HTTP, timed at the client
traffic.py   many of them at once, counted
oracle.py    the target's own greedy text
numbers.py   from answers to rates, intervals and break-even
swap.py      a training round, and its swap under running streams
run.py       the run itself, phase by phase
report.py    table, Markdown and picture
"""
