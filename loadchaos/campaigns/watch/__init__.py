"""Watch a server beside somebody else's load: production traffic, or a command that goes through our proxy."""
