"""SHELF: the planted bugs, one file each."""
