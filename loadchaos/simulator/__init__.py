"""The embedded server: imitates vLLM and LMDeploy, without a GPU. Its log lines and error bodies are those of the real
servers: loadchaos' own detectors are tested against them. `python -m loadchaos.simulator.server` runs it.
"""
