"""The simulated engine core."""
