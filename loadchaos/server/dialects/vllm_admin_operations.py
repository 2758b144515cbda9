"""vLLM's admin endpoints (caches, sleep, pause, LoRA) as attacks: a profile uses one as `{admin: NAME}`."""

from __future__ import annotations

from loadchaos.server.dialects.base import AdminOperation

DEVELOPMENT_GATE = "set VLLM_SERVER_DEV_MODE=1 in the server's environment"
_SLEEP = f"{DEVELOPMENT_GATE} and start it with --enable-sleep-mode"
_LORA = "set VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 in the server's environment"
_PROFILE = "start the server with a profiler configured (--profiler-config, before 0.13 VLLM_TORCH_PROFILER_DIR)"

# While generation is stopped requests are accepted and hang without a byte, and /health says 200 (measured, 0.32).
_FROZEN = ("alive_but_hung", "stalled", "timeout")
# From 0.33 on a pause with abort or wait refuses new requests with 503; keep and sleep let them wait (measured).
_REFUSED = ("http_paused", "shed")
# A request that is aborted before its first token ends with [DONE] and no finish_reason (measured, 0.32).
_ABORTED = ("finish_abort", "truncated")

ADMIN_OPERATIONS = (
    # The processor cache only, both sides. The encoder cache stays: this attack never causes an encoder cache miss.
    AdminOperation(
        "reset_mm_cache", "POST", "/reset_mm_cache", gate=DEVELOPMENT_GATE, since="0.11.2", empties_a_cache=True,
        effects=(
            "mm_cache_desync_request", "mm_cache_desync_thread_death", "mm_cache_keyerror_v08",
            "cache_reset_inflight_warning", "mm_cache_spin",
        ),
    ),
    AdminOperation(
        "reset_encoder_cache", "POST", "/reset_encoder_cache", gate=DEVELOPMENT_GATE, since="0.16.0", empties_a_cache=True,
        effects=(
            "encoder_cache_miss", "encoder_cache_miss_skipped", "cache_reset_inflight_warning", "mm_encoder_gave_nothing",
        ),
    ),
    AdminOperation(
        "reset_prefix_cache", "POST", "/reset_prefix_cache", gate=DEVELOPMENT_GATE, since="0.8.5", empties_a_cache=True,
        effects_when={"reset_running_requests=true": (
            "preemption_storm", "async_placeholder_underflow", "mm_encoder_gave_nothing",
        )},
    ),
    AdminOperation(
        "sleep", "POST", "/sleep", params={"level": "1", "mode": "abort"}, gate=_SLEEP, since="0.8.5", undo="wake_up",
        effects=(*_FROZEN, "sleep_inflight_fault"), effects_when={"mode=abort": _ABORTED}, limit_s=120.0,
    ),
    AdminOperation(
        "wake_up", "POST", "/wake_up", gate=_SLEEP, since="0.8.5", effects=("sleep_inflight_fault", "cumem_oom_wakeup"),
        limit_s=120.0,
    ),
    AdminOperation(
        "pause", "POST", "/pause", params={"mode": "abort"}, gate=DEVELOPMENT_GATE, since="0.12.0", undo="resume",
        effects=_FROZEN,
        effects_when={"mode=abort": (*_ABORTED, *_REFUSED), "mode=wait": _REFUSED},
        limit_s=120.0,  # mode=wait answers when all running are done
    ),
    AdminOperation("resume", "POST", "/resume", gate=DEVELOPMENT_GATE, since="0.12.0"),
    AdminOperation(
        "abort_requests", "POST", "/abort_requests", body={"abort_all": True},
        gate=f"{DEVELOPMENT_GATE} (after 0.25; until then --tokens-only has it)", since="0.11.2", effects=_ABORTED,
    ),
    AdminOperation(
        "collective_rpc", "POST", "/collective_rpc", body={"method": "check_health"}, gate=DEVELOPMENT_GATE, since="0.10.2",
        allowed={"method": ("check_health", "list_loras")},  # other methods of a worker may stop the server
    ),
    AdminOperation(
        "release_kv_cache_memory", "POST", "/release_kv_cache_memory", gate=_SLEEP, since="0.31.0",
        # 500 unless a pause is complete (measured, 0.32)
        effects=("http_unhandled_500", "alive_but_hung", "kv_release_without_pause"),
    ),
    AdminOperation(
        "scale_elastic_ep", "POST", "/scale_elastic_ep", body={}, gate="start the server with --enable-elastic-ep",
        since="0.10.0", effects=("http_scaling", "shed"), limit_s=300.0,
    ),
    AdminOperation(
        "load_lora_adapter", "POST", "/v1/load_lora_adapter", body={}, gate=_LORA, undo="unload_lora_adapter",
        effects=("lora_load_failed",), limit_s=120.0,
    ),
    AdminOperation("unload_lora_adapter", "POST", "/v1/unload_lora_adapter", body={}, gate=_LORA),
    # Steps are traced in memory, and the engine stands still while the trace is written (minutes; measured, 0.32).
    AdminOperation(
        "start_profile", "POST", "/start_profile", gate=_PROFILE, undo="stop_profile", limit_s=120.0,
        effects=(*_FROZEN, "api_server_leak", "memory_leak", "rpc_timeout", "shm_broadcast_stall"),
    ),
    AdminOperation("stop_profile", "POST", "/stop_profile", gate=_PROFILE, limit_s=300.0, effects=_FROZEN),
    AdminOperation("is_sleeping", "GET", "/is_sleeping", gate=DEVELOPMENT_GATE, since="0.8.5", destructive=False),
    AdminOperation("is_paused", "GET", "/is_paused", gate=DEVELOPMENT_GATE, since="0.12.0", destructive=False),
    AdminOperation("server_info", "GET", "/server_info", gate=DEVELOPMENT_GATE, since="0.8.5", destructive=False),
)  # fmt: skip
