"""loadchaos: drive an LLM server to its limits, watch it as a doctor watches a patient, say what broke."""

__version__ = "0.1.0"
