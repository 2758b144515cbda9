"""Capacity: search the highest load that meets a goal, step by step."""
