"""The simulated engine core: scheduler, KV cache, runner and its process."""
