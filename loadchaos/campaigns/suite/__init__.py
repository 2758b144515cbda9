"""Suite: every shipped profile that fits a server, one after the other."""
