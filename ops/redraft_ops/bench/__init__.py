"""`redraft bench`: configurations side by side in one interleaved run. Nothing here asserts on time."""
