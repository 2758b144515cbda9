"""The load: requests, payloads, client behaviours and Locust workers.

`payloads` builds what is sent, `behaviours` decides how a client acts, `wire` turns bytes into outcomes, `worker`
drives the plan's phases, `cluster` connects workers on other machines, `webui` extends Locust's web page.
`locustfile.py` is what Locust runs. A new payload or behaviour is one file and one entry in its package's table.
"""
