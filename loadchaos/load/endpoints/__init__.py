"""Endpoints of the OpenAI API that requests are sent to; one file each.

A file has `path` (of a dialect) and `body` (of a draft). `ENDPOINTS` is the table. Answers are read in wire/completion.py.
"""

from loadchaos.load.endpoints import chat

ENDPOINTS = {"chat": chat}
