"""LMDeploy's HTTP API, errors, metrics and log, from 0.6 to 0.18."""
