"""`python -m redraft_ops` is `redraft`: child processes are started this way, with the same interpreter."""

from redraft_ops.cli import main

if __name__ == "__main__":
    main()
