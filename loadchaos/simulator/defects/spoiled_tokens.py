"""Defects that spoil tokens of an answer: they are wrong, lost or repeated."""

from __future__ import annotations

from loadchaos.simulator.defects.defect import Defect
from loadchaos.simulator.engine.request import ScheduledRequest
from loadchaos.simulator.engine.rules import EngineRules, RequestStep
from loadchaos.simulator.engine.types import Spoil


def _poison_prefix_cache(rules: EngineRules) -> None:
    poisoned: set[int] = set()

    def spoil(request: ScheduledRequest, step: RequestStep) -> Spoil | None:
        if request.outputs > step.new_tokens:
            return None  # the prompt was computed before
        hashes = request.original.prefix_hashes
        hits = request.cached_tokens // step.config.block_size
        if step.prefills > 1:
            poisoned.update(hashes[hits:])
            return "derailed"
        return "derailed" if poisoned.intersection(hashes[:hits]) else None

    rules.spoilers.append(spoil)


def _prompt_taken_for_decode(request: ScheduledRequest, step: RequestStep) -> Spoil | None:
    drafts = step.config.num_speculative_tokens
    return "derailed" if drafts and request.prompt - request.cached_tokens == drafts + 1 else None


def _wrong_block_at_edge(request: ScheduledRequest, step: RequestStep) -> Spoil | None:
    return "derailed" if request.cached_tokens and request.prompt % step.config.block_size == 0 else None


def _lost(_: ScheduledRequest, step: RequestStep) -> Spoil | None:
    return "lost" if step.prefills and step.drafts > step.rejected and step.running > 1 else None


def _repeated(_: ScheduledRequest, step: RequestStep) -> Spoil | None:
    return "repeated" if step.prefills and step.rejected and step.running > 1 else None


def _without_grammar(request: ScheduledRequest, step: RequestStep) -> Spoil | None:
    return "derailed" if request.original.guided and step.drafts > step.rejected and step.running > 1 else None


def _stale_after_preemption(request: ScheduledRequest, _: RequestStep) -> Spoil | None:
    return "derailed" if request.epoch else None


DEFECTS = (
    Defect(
        "stale_kv_on_resume",
        "a request that was preempted reads other requests' KV blocks when it resumes; its answer goes wrong, silently",
        plant=lambda rules: rules.spoilers.append(_stale_after_preemption),
        remedies={"num_gpu_blocks": 8192},
    ),
    Defect(
        "prompt_taken_for_decode",
        "a prompt of which exactly K+1 tokens are not in the cache is computed as a decode; its answer is wrong",
        plant=lambda rules: rules.spoilers.append(_prompt_taken_for_decode),
        remedies={"num_speculative_tokens": 0},
        upstream="https://github.com/vllm-project/vllm/issues/49918",
    ),
    Defect(
        "wrong_block_at_edge",
        "a prompt whose length is a multiple of the block size reads a wrong block when its prefix is in the cache",
        plant=lambda rules: rules.spoilers.append(_wrong_block_at_edge),
        remedies={"enable_prefix_caching": False},
        upstream="https://github.com/sgl-project/sglang/issues/22819",
    ),
    Defect(
        "poisoned_prefix_cache",
        "KV blocks of prompts that share a step are wrong and stay in the prefix cache: later hits are wrong, too",
        plant=_poison_prefix_cache,
        remedies={"max_num_seqs": 1},
        upstream="https://github.com/vllm-project/vllm/issues/37076",
    ),
    Defect(
        "repeated_token",
        "a step that rejects a draft beside another request's prompt gives a token of the answer twice",
        plant=lambda rules: rules.spoilers.append(_repeated),
        remedies={"num_speculative_tokens": 0},
        upstream="https://github.com/vllm-project/vllm/issues/39273",
    ),
    Defect(
        "lost_token",
        "a step that accepts a draft beside another request's prompt loses a token of the answer; usage counts it",
        plant=lambda rules: rules.spoilers.append(_lost),
        remedies={"num_speculative_tokens": 0},
        upstream="https://github.com/vllm-project/vllm/issues/30099",
    ),
    Defect(
        "schema_ignored",
        "beside other requests, an answer with a schema, regex or choices leaves its grammar behind accepted drafts",
        plant=lambda rules: rules.spoilers.append(_without_grammar),
        remedies={"num_speculative_tokens": 0},
        upstream="https://github.com/vllm-project/vllm/pull/44993",
    ),
)
