"""incidents/NNN-<id>/."""
