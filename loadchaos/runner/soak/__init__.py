"""Runs on a schedule, each its own child process: what is due, what was missed, what is kept, and who is asked to do it."""
