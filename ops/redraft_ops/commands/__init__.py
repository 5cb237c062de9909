"""One module per command; each imports what it needs inside the function, so that `--help` is quick."""
