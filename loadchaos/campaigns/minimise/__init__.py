"""Reduce a recorded failure to the fewest requests and launch flags. `ddmin` is delta debugging. `decider` decides by
tries if a candidate still fails, and keeps its decisions on disk, so that a killed minimiser continues. `reductions`
and `rewrite` make smaller candidates, `minimiser` tries them in order, and `repro` writes the script and runs it.
"""
