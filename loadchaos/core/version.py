"""Version of loadchaos. It stands here because `import loadchaos` may import what needs it."""

__version__ = "0.1.0"
