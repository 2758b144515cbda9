"""`transformers serve` 5.19 and 5.24. With and without continuous batching."""

from __future__ import annotations

import re

from loadchaos.server.dialects.base import DetectionSign, Dialect, patterns

TRANSFORMERS = Dialect(
    name="transformers",
    title="transformers serve",
    signs=(DetectionSign("/load_model", (405,), weight=2),),
    version_page=None,
    command_word="transformers",
    repository="huggingface/transformers",
    metrics_path=None,
    sends_done=False,
    # The worker of continuous batching dies at the first error, and the process goes on without it.
    health_dead=patterns(r"cb_worker_dead"),
    validation=patterns(
        r"Unexpected fields in the request: ",
        r"Server is pinned to '.{0,300}'; requested ",
        r"prompt must be a string",
        r"Missing `model` field|JSON decode error|json_invalid",
    ),
    engine_dead=patterns(r"CB worker (?:is dead and cannot accept|died during) request"),
    log_dead=patterns(r"ContinuousBatchingLogger - ERROR - Error in generation loop: "),
    log_shutdown=patterns(r"INFO:\s+Shutting down\b"),
    token_counters=(),
    # It takes prompts beyond the model's context without a word.
    over_length=("rejected", "ok", "empty"),
    context_fits=False,
    process_roles=((re.compile(r"transformers serve"), "api_server"),),
)
