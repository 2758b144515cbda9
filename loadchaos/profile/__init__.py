"""BEFORE: what will be sent and when. No clock, no network: same profile and same seed, same steps."""
