"""Command line of loadchaos: a file for each command, which imports what it needs inside its function."""
