"""Watching the server as a doctor watches a patient: probe, scrape, logs, processes."""
