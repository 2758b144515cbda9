"""The embedded server: a small honest model of a serving engine, with bugs planted on request."""
