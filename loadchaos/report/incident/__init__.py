"""Incident folders: page, log excerpt and requests of an incident."""
