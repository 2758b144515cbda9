"""Campaigns: strategies that make many runs and decide what to try next."""
