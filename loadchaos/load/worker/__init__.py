"""One Locust worker's load: steps become requests, each with two ledger rows."""
