"""The load of one Locust worker: it turns the plan's steps into requests and writes two ledger rows for each.

`Dispatcher` drives a phase with one `Slot` per user. `WorkerPlan` builds the requests, `Arrivals` reads the answers,
`RequestRecorder` writes the rows. `locust_user` offers the same requests to a Locust that loadchaos did not start
(`from loadchaos import from_profile`).
"""
