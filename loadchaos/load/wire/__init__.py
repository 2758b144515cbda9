"""The client side of HTTP, SSE and the OpenAI protocol. Every request ends in exactly one outcome.

A new error format is one branch of `outcome_rules.error_object`; a server's own error texts belong to its dialect.
"""
