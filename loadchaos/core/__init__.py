"""What every package may use: the shared types, errors, units, histograms, redaction."""
