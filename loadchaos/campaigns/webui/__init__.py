"""Runs from the web UI of Locust: each Start is a run."""
