"""Questions beside the load; their answers are judged in analysis/oracles/."""
