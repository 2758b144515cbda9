"""Hunt: find failures that no profile describes, with workloads that are made of genes."""
