"""vLLM's HTTP API."""
