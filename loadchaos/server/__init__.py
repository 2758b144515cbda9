"""Discover, start and monitor the server under test.

Main types: `Dialect` (knowledge about a kind of server), `Facts` (one server), `LaunchedServer` and `Monitor`.
"""
