"""HTTP server and log format of the simulator."""
