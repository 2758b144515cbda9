"""vLLM's log of the server's start, engine death and end."""

from __future__ import annotations

from loadchaos.simulator.http.logs import LifecycleLog


class VllmLifecycleLog(LifecycleLog):
    """Writer of the log of one API server."""

    def start(self) -> None:
        options, log = self._options, self._log
        log.line("INFO", "api_utils.py:286", f"vLLM API server version {options.engine.version}")
        arguments = {"model": options.server.model, **options.flags}
        log.line("INFO", "api_utils.py:286", f"non-default args: {arguments}")
        if options.engine.enable_chunked_prefill:
            text = f"Chunked prefill is enabled with max_num_batched_tokens={options.engine.max_num_batched_tokens}."
            log.line("INFO", "scheduler.py:226", text)

    def failed_start(self) -> None:
        text = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
        self._log.raw([f"{self._log.tag}{line}" for line in ("Traceback (most recent call last):", text)])

    def death(self) -> None:
        frames = (
            'File "/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/async_llm.py", line 647, in output_handler',
            "  outputs = await engine_core.get_output_async()",
            'File "/usr/local/lib/python3.12/dist-packages/vllm/v1/engine/core_client.py", line 998, in get_output_async',
            "  raise self._format_exception(outputs) from None",
        )
        dead = (
            "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the "
            "root cause."
        )
        head = ["AsyncLLM output_handler failed.", "Traceback (most recent call last):"]
        self._log.error("async_llm.py:703", [*head, *(f"  {line}" for line in frames), dead])

    def stopped(self) -> None:
        super().stopped()
        self._log.line("INFO", "core_client.py:770", "[shutdown] MPClient: start timeout=0s")
        self._log.line("INFO", "core_client.py:777", "[shutdown] MPClient: complete")
