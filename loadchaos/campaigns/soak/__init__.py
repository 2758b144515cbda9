"""Runs on a schedule (`loadchaos soak`). Each run is a process of its own; old ones are deleted."""
