"""Attacks on the server and on the network path to it.

`AttackInjector` runs the attacks of a profile on their timetable and writes their ledger rows. To add:

- a network fault: a class in toxics.py; a signal: an entry in signals.py; a host load: a function in host.py; each with
  its name in core/attack_names.py;
- an admin operation: a row of the dialect's table in server/dialects/;
- a new kind of attack: KIND.py with a function `make` and a subclass of `Attack`, and its entry in `ATTACK_KINDS`
  (core/attack_names.py).
"""
