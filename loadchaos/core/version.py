"""Version of loadchaos, in a module that any other may import."""

__version__ = "0.2.0"
