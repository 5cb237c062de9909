"""How a model reads tokens into a slot cache: by the library's own modules, or by a lean pass."""
