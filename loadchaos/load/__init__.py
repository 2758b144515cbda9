"""The load: requests, payloads, client behaviours and Locust workers. `locustfile.py` is what Locust runs."""
