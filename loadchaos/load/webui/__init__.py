"""What is added to Locust's web UI."""
