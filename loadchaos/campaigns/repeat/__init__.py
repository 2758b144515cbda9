"""Run one load several times: what repeats, and what is noise between runs."""
