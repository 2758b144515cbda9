"""Incidents: one per death, hang or outage of a server.

Main types: `Incident` and `IncidentTracker`. `FailureRegistry` holds failures that ended no server.
"""
