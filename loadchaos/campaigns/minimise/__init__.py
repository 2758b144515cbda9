"""Reduce a recorded failure to the fewest requests and launch flags."""
