"""SHELF: where a server log can live and how it is followed."""
