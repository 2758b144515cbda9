"""Defects that only change values of the rules."""

from __future__ import annotations

from loadchaos.simulator.defects.defect import Defect

DEFECTS = (
    # It shows when an entry's last reader and its successor are planned in the same step.
    Defect(
        "encoder_pop_before_draft",
        "within a step, evicted encoder entries are popped before the drafter gathers them",
        {"drop_before_draft": True},
        remedies={"num_speculative_tokens": 0},
        upstream="https://github.com/vllm-project/vllm/pull/39543",
    ),
    # In vLLM 0.22.1 `_try_schedule_encoder_inputs` looks one token ahead, but computes the range of the embeddings that
    # the step needs without it; the range of such an image is empty, and its encoder is not scheduled.
    Defect(
        "encoder_skipped_at_step_end",
        "an image that begins where a prefill step ends is not encoded, but the drafter reads one token ahead",
        {"skips_image_at_step_end": True},
        remedies={"num_speculative_tokens": 0, "disable_chunked_mm_input": True},
        upstream="https://github.com/vllm-project/vllm/issues/38551",
    ),
    # The first change needs more different images than the cache holds, and old images used again. The second needs
    # images that arrive between a reset and the next step and are used again later.
    Defect(
        "mm_cache_desync",
        "the engine's side of the processor cache diverges from the API server's under churn or a reset in flight",
        {"refresh_on_hit": False, "reset_in_order": False},
        remedies={"mm_processor_cache_items": 0},
        upstream="https://github.com/vllm-project/vllm/issues/33865",
    ),
    # LMDeploy 0.6; fixed with 0.7 without an issue we know of. The engine's limit is the same (limits.py).
    Defect(
        "kv_capacity_as_500",
        "an input longer than the KV cache surfaces as HTTP 500 through a validation error that hides the cause",
        {"kv_error_as_500": True},
        remedies={"cache_max_entry_count": 0.8},
        dialect="lmdeploy",
    ),
    Defect(
        "kv_leak_on_abort",
        "the last KV block of a running request that is aborted is never given back; no log line says so",
        {"blocks_leaked_on_abort": 1},
    ),
    # It takes an abort while at least two younger requests run.
    Defect(
        "rows_slip_on_abort",
        "an abort shifts the rows of the running batch: two clients get each other's tokens; no log line says so",
        {"swap_rows_on_abort": True},
    ),
    Defect(
        "stale_image_embedding",
        "of several images encoded in one step, the later ones are answered from another image's embedding, silently",
        {"stale_joint_embeddings": True},
        remedies={"max_num_seqs": 1},
        upstream="https://github.com/vllm-project/vllm/issues/55547",
    ),
    Defect(
        "streams_swapped",
        "two requests whose first tokens are sampled in one step get each other's answers; no log line says so",
        {"swap_joint_starts": True},
        remedies={"max_num_seqs": 1},
        upstream="https://github.com/ggml-org/llama.cpp/issues/28286",
    ),
    # It takes two adapters, or an adapter and the base model, in prefill in one step.
    Defect(
        "wrong_adapter",
        "of prompts with different LoRA adapters in one step, the later ones are computed with the adapter of the first",
        {"adapter_of_first_prompt": True},
        remedies={"max_loras": 1},
        upstream="https://github.com/vllm-project/vllm/issues/38606",
    ),
    # So does the hermes parser of vLLM 0.32.0 in streams.
    Defect(
        "call_cut_at_mark",
        "the arguments of a tool call end before the text </tool_call> in them",
        {"ends_calls_at": "</tool_call>"},
        upstream="https://github.com/vllm-project/vllm/issues/44060",
    ),
    # It takes a queue: an abort of a running request is handled correctly.
    Defect(
        "queued_abort_held",
        "a request that is aborted before it was scheduled stays in the queue for ever; no log line says so",
        {"holds_queued_aborts": True},
    ),
    # Upstream counts requests that are held for another reason. Without a preemption every request is admitted.
    Defect(
        "admission_stops",
        "when running and preempted requests together reach max_num_seqs, no request is admitted any more; /health says 200",
        {"stops_admitting_when_full": True},
        remedies={"num_gpu_blocks": 8192},
        upstream="https://github.com/vllm-project/vllm/issues/53130",
    ),
    Defect(
        "connection_slot_leak",
        "clients who leave amid a request keep their places in the HTTP layer; without a place no client is served",
        {"most_unfinished_connections": 20},
    ),
    # It takes an abort of a running request whose prefix another running request shares, and a later hit on that prefix.
    Defect(
        "shared_block_freed",
        "an abort frees the blocks of a shared prefix that another request holds; the next hit on one kills the engine",
        {"frees_shared_blocks_on_abort": True},
        remedies={"enable_prefix_caching": False},
    ),
    Defect(
        "queue_lost_on_resume",
        "requests that wait when the engine resumes or wakes up are never served; no log line says so",
        {"forgets_queue_on_resume": True},
    ),
)
