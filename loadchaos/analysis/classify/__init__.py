"""Classify log lines and error bodies: signatures in, failures out.

Main types: `Classifier` (line -> matches), `LiveClassifier` (log rows of a run -> failures) and `Diagnosis` (a whole log).
To add a failure, add an entry to a file in signatures/ with an example line; no code changes (docs/signatures.md).
"""
