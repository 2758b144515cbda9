"""State of a server: healthy, hung, dead, and so on.

Main type: `StateMachine`: `feed` rows, get `state` rows. Limits, such as when a server is hung, stand at the top of
machine.py. To add a sign, add it to a class in signals.py or death_evidence.py and use it in machine.py.
"""
