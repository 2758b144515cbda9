"""Capacity: decide if a load meets a goal, and what limits it."""
