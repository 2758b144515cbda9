"""LMDeploy's HTTP API."""
