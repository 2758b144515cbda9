"""Shared types and the ledger, which every other package may import. Nothing here imports another package of loadchaos."""

import sys
from types import ModuleType

# httpx imports its command line, which takes rich and pygments along: megabytes that no process of ours uses.
sys.modules.setdefault("httpx._main", ModuleType("httpx._main"))
