"""What is sent and how: wire protocol, payloads, client behaviours, Locust workers."""
