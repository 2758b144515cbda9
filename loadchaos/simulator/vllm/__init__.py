"""vLLM's HTTP API, errors, metrics and log, from 0.8 to 0.33."""
