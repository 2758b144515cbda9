"""The client side of HTTP, SSE and the OpenAI protocol.

Every request ends in exactly one outcome. `Exchange` is one request in progress; behaviours call its steps. Parsers
(`http1`, `sse`, `answer_reader`) do no I/O. Outcomes are decided in `core/outcome_rules.py` and `decision.py`. A new error
format is one branch of `outcome_rules.error_object`; a server's own error texts belong to its dialect.
"""
