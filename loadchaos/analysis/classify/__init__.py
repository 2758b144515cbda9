"""Log lines to named failures."""
