"""Find the launch flags and the releases that a failure depends on."""
