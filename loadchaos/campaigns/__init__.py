"""Campaigns: strategies that make many runs, or replay them, and decide what to try next."""
