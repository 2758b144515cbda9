"""One Locust worker's load.

Steps become requests, each with two ledger rows. `Dispatcher` drives a phase with one `Slot` per user. `WorkerPlan`
builds the requests, `Receiver` reads the answers, `RequestRecorder` writes the rows. `locust_user` offers the same
requests to a Locust that loadchaos did not start (`from loadchaos import from_profile`).
"""
