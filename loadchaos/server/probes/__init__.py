"""Questions beside the load whose answers are judged.

`question` and `kinds` make questions, `ask` sends one and records its answer, `parts` has what is asked when, and `prober`
runs all of it. The answers are judged in analysis/oracles/.
"""
