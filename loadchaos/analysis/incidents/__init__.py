"""Incidents and the failures they group."""
