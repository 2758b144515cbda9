"""The embedded server: imitates vLLM and LMDeploy, without a GPU.

`python -m loadchaos.simulator.server` runs it. `engine/` is a small model of a serving engine in a process of its own;
`vllm/` and `lmdeploy/` are the HTTP APIs, with the errors, metrics and log lines of each release ("era"); `defects/` has
the bugs that can be planted, one file each. Its log lines and error bodies are those of the real servers: loadchaos'
own detectors are tested against them.
"""
