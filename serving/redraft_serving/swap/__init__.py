"""Follows the registry: champions, challengers and versions before are swapped in, tried and watched.

Whatever goes wrong, the present drafts keep serving. One pass over a domain reads: champion, canary, watch.
"""

from redraft_serving.swap.watcher import SwapWatcher

__all__ = ["SwapWatcher"]
