"""The OpenAI-compatible face of an engine, with vLLM's extensions and redraft's own endpoints."""
