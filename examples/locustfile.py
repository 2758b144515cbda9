"""A profile's traffic in a Locust of your own, beside users of your own.

locust -f examples/locustfile.py --host http://127.0.0.1:8000 --headless -u 20 -r 5 -t 1m
"""

from locust import HttpUser, between, task

from loadchaos import from_profile

Smoke = from_profile("smoke")


class Operator(HttpUser):
    """Somebody who looks at the server's dashboard now and then."""

    fixed_count = 1
    wait_time = between(0.1, 0.5)

    @task
    def look(self) -> None:
        """One look."""
        self.client.get("/metrics")
