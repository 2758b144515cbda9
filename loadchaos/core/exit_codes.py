"""Exit codes of the command line. To add one: a line here, a row in docs/verdict.md and README.md, and the place that
returns it.
"""

PASS = 0
FAIL = 1
USER_ERROR = 2
"""A mistake in the profile, the options, a port, a folder or the authorisation."""
UNKNOWN = 3
"""Nothing was proved, or the record is incomplete."""
TARGET_ERROR = 4
"""The target cannot be tested: never healthy, wrong model, a refused key."""
INTERNAL_ERROR = 70
"""A bug of loadchaos (EX_SOFTWARE of sysexits.h): it must not read as a verdict."""
INTERRUPTED = 130
"""Ended by SIGINT (Ctrl-C): 128 plus the number of the signal."""
TERMINATED = 143
"""Ended by SIGTERM."""
BY_SIGNAL = (INTERRUPTED, TERMINATED)
BEFORE_LOAD = (USER_ERROR, TARGET_ERROR)
"""Codes of a run that sent no request of its load."""
