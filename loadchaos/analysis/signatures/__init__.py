"""SHELF (data): what failures look like in a log, one TOML file a speaker."""
