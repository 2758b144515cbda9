"""Run the reproducers of advisories on servers that `loadchaos doctor --prove` starts, of one release or of several."""
