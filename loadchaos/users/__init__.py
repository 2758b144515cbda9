"""The load of one Locust worker: steps of the plan become requests, users are slots, every request leaves two rows."""
