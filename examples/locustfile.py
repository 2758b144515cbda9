"""Use the traffic of a profile in your own locustfile, beside your own users.

locust -f examples/locustfile.py --host http://127.0.0.1:8000 --headless -u 20 -r 5 -t 1m
"""

from locust import HttpUser, between, task

from loadchaos import from_profile

Smoke = from_profile("smoke")


class Operator(HttpUser):
    """A user that reads the server's metrics from time to time."""

    fixed_count = 1
    wait_time = between(0.1, 0.5)

    @task
    def read_metrics(self) -> None:
        """Read the metrics page once."""
        self.client.get("/metrics")
