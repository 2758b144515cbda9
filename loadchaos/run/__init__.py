"""One run of a profile, step by step.

`run.run` performs the steps. Its parts are `RunContext` (inputs and record), `ServerUnderTest`, `LoadSession`,
`RunAttacks`, `Preparation` and `RunErrors`. A new step is one method and one line in `_Run.execute`; a new option of
`loadchaos run` is one field of `Options`.
"""
