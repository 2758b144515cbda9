#!/usr/bin/env python
"""Run LMDeploy 0.18's real api_server on a machine without a GPU.

CLI, FastAPI app, routes, AsyncEngine, error mapping, metrics and health monitor are LMDeploy's. Only the backend engine
(the result of Engine.from_pretrained or of the ZMQ MP engine) is replaced by FakeBackend.

    VENV/bin/python run_lmdeploy.py [--port 23333] [--vlm] [--model DIR] [--blocks 21] [--block-size 64] \
        [--session-len 4096] [--max-batch-size 8] [--tps 200] [-- <any real `lmdeploy serve api_server` flag>]

Fault directives, anywhere in the prompt text (or in the variable `FAULT`, for all requests):
    [[ERR:<ResponseType>]]       first engine output has that status   (INPUT_LENGTH_ERROR, INTERNAL_ENGINE_ERROR, ...)
    [[MID:<ResponseType>:<n>]]   n tokens, then that status
    [[RAISE:<n>]]                n tokens, then the engine generator raises RuntimeError (like a dead RPC or a CUDA error)
    [[HANG:<n>]]                 n tokens, then nothing (scheduler_tick stops, so /health becomes 503)
    [[EMPTY]]                    engine generator ends without any output
    [[OUT:<n>]]                  generate n tokens then stop (default 16; max_tokens where the end is ignored)
    [[DIE]]                      the backend process dies: all running requests fail, health_probe reports not alive
"""

import argparse
import asyncio
import math
import os
import random
import re
import sys
import time

p = argparse.ArgumentParser(allow_abbrev=False)
p.add_argument("--port", type=int, default=23333)
p.add_argument("--vlm", action="store_true")
p.add_argument("--model", help="model folder (default: that of the installation)")
p.add_argument("--blocks", type=int, default=64)
p.add_argument("--block-size", type=int, default=64)
p.add_argument("--session-len", type=int, default=4096)
p.add_argument("--max-batch-size", type=int, default=8)
p.add_argument("--tps", type=float, default=200.0)
p.add_argument("--prefill-tps", type=float, default=20000.0)
args, rest = p.parse_known_args()
if rest[:1] == ["--"]:
    rest = rest[1:]

from lmdeploy.messages import EngineEvent, EngineOutput, EventType, RequestMetrics, ResponseType, ScheduleMetrics
from lmdeploy.serve.core.async_engine import AsyncEngine

DIRECTIVE = re.compile(r"\[\[([A-Z]+)(?::([A-Za-z_]+))?(?::?(\d+))?\]\]")


class FakeBackend:
    """Stand-in for lmdeploy.pytorch.engine.Engine."""

    def __init__(self, engine_config):
        self.engine_config = engine_config
        engine_config.num_gpu_blocks = engine_config.num_gpu_blocks or args.blocks
        self.block_size = engine_config.block_size
        self.total_blocks = engine_config.num_gpu_blocks
        # 0.18 formula, pytorch/engine/engine.py::_get_max_session_len with num_reserved_gpu_blocks=1 (config_builder.py):
        #   (num_gpu_blocks - 1) * block_size - block_size
        self.max_session_len = min((self.total_blocks - 2) * self.block_size, engine_config.session_len or 1 << 60)
        self.used = 0
        self.active = 0
        self.waiting = 0
        self.tick = 0
        self.dead = False
        self.hung = False
        self.cond = None

    # ---- called by AsyncEngine
    def create_instance(self, cuda_stream_id=0):
        return FakeInstance(self)

    def start_loop(self):
        self.cond = asyncio.Condition()
        asyncio.get_running_loop().create_task(self._tick())
        return True

    async def _tick(self):
        while True:
            await asyncio.sleep(0.05)
            if not self.hung and not self.dead:
                self.tick += 1

    def get_schedule_metrics(self):
        return ScheduleMetrics(
            active_seqs=self.active,
            waiting_seqs=self.waiting,
            cache_usage=self.used / self.total_blocks,
            prefix_cache_hit_rate=0.0,
            scheduler_tick=self.tick,
        )

    async def get_health_status(self):
        if self.dead:
            return {"alive": False, "message": "PyTorch ZMQ engine process is not alive.", "schedule_metrics": None}
        return {"alive": True, "message": "PyTorch engine is healthy.", "schedule_metrics": self.get_schedule_metrics()}

    async def sleep(self, level=1):
        pass

    def wakeup(self, tags=None):
        pass

    def complete_weights_update(self):
        pass

    def end_session(self, session_id):
        return True

    def close(self):
        pass


class FakeInstance:
    def __init__(self, eng):
        self.eng = eng
        self.cancelled = set()

    async def async_cancel(self, session_id):
        self.cancelled.add(session_id)
        return ResponseType.SUCCESS

    async def async_end(self, session_id):
        return ResponseType.SUCCESS

    async def async_stream_infer(
        self,
        session_id,
        input_ids=None,
        gen_config=None,
        prompt=None,
        multimodal=None,
        adapter_name=None,
        stream_output=True,
        **kw,
    ):
        eng = self.eng
        text = (prompt or "") + os.environ.get("FAULT", "")
        d = {m.group(1): (m.group(2), int(m.group(3) or 0)) for m in DIRECTIVE.finditer(text)}
        if eng.dead:
            from lmdeploy.pytorch.engine.mp_engine.zmq_rpc import RPCServerDeadError

            raise RPCServerDeadError("PyTorch ZMQ engine process is not alive.")
        n_in = len(input_ids)
        if n_in > eng.max_session_len:  # engine_instance.py
            yield EngineOutput(ResponseType.INPUT_LENGTH_ERROR, [])
            return
        if "ERR" in d:
            yield EngineOutput(ResponseType[d["ERR"][0]], [])
            return
        if "EMPTY" in d:
            return
        if "DIE" in d:
            eng.dead = True
            raise RuntimeError("PyTorch ZMQ engine process is not alive.")
        # Told to ignore the end, an engine goes on to the last token asked for.
        usual = gen_config.max_new_tokens if gen_config.ignore_eos else 16
        n_out = min(gen_config.max_new_tokens, d.get("OUT", (None, usual))[1])
        n_out = max(1, min(n_out, eng.max_session_len - n_in + 1))
        blocks = math.ceil((n_in + n_out) / eng.block_size)
        letters = random.Random(repr(input_ids))  # another prompt has another answer, the same one the same
        t_queue = time.time()
        eng.waiting += 1
        try:
            async with eng.cond:
                while eng.total_blocks - eng.used < blocks:
                    await asyncio.wait_for(eng.cond.wait(), None)
                eng.used += blocks
        finally:
            eng.waiting -= 1
        eng.active += 1
        try:
            t_sched = time.time()
            await asyncio.sleep(n_in / args.prefill_tps)
            ev = [EngineEvent.new_event(EventType.QUEUED, t_queue), EngineEvent.new_event(EventType.SCHEDULED, t_sched)]
            for i in range(n_out):
                for key in ("MID", "RAISE", "HANG"):
                    if key in d and i >= d[key][1]:
                        if key == "MID":
                            yield EngineOutput(ResponseType[d[key][0]], [])
                            return
                        if key == "RAISE":
                            raise RuntimeError("CUDA error: an illegal memory access was encountered")
                        eng.hung = True
                        await asyncio.sleep(1e9)
                if session_id in self.cancelled:
                    self.cancelled.discard(session_id)
                    yield EngineOutput(ResponseType.CANCEL, [])
                    return
                await asyncio.sleep(1 / args.tps)
                last = i == n_out - 1
                tok = 64 + letters.randrange(26)
                stop = last and n_out < gen_config.max_new_tokens and gen_config.stop_token_ids
                if stop:
                    tok = gen_config.stop_token_ids[0]
                yield EngineOutput(
                    ResponseType.FINISH if last else ResponseType.SUCCESS,
                    [tok],
                    req_metrics=RequestMetrics(time.time(), ev, cached_tokens=0),
                )
                ev = []
        finally:
            eng.active -= 1
            async with eng.cond:
                eng.used -= blocks
                eng.cond.notify_all()


def _build_fake(self, model_path=None, backend_config=None, **kw):
    eng = FakeBackend(backend_config)
    # print the same log lines a real pytorch engine prints, so log scrapers can be tested
    from lmdeploy.pytorch.config import CacheConfig
    from lmdeploy.utils import get_logger

    cc = CacheConfig(
        max_batches=backend_config.max_batch_size,
        block_size=eng.block_size,
        num_cpu_blocks=0,
        num_gpu_blocks=eng.total_blocks,
        num_reserved_gpu_blocks=1,
    )
    get_logger("lmdeploy").info(f"Building CacheEngine with config: \n{cc}.")
    return eng


AsyncEngine._build_pytorch = _build_fake

if args.vlm:
    import lmdeploy.vl.engine as vle

    class FakeEncoder:
        """Real media loading/validation happens before this; only the HF processor is replaced."""

        _uses_new_preprocess = True

        def __init__(self, model_path, *a, **k):
            from lmdeploy.tokenizer import Tokenizer

            self.model = self
            self.tok = Tokenizer(model_path)

        def get_input_prompt(self, messages, chat_template, tools=None, chat_template_kwargs=None):
            flat = []
            for m in messages:
                c = m["content"]
                if isinstance(c, list):
                    c = "".join(
                        x["text"] if x["type"] == "text" else "<|vision_start|><|image_pad|><|vision_end|>" for x in c
                    )
                flat.append({"role": m["role"], "content": c})
            return chat_template.messages2prompt(flat)

        async def preprocess(self, messages, input_prompt=None, mm_processor_kwargs=None):
            ids, mm = self.tok.encode(input_prompt), []
            pad = self.tok.encode("<|image_pad|>")[-1]
            imgs = [x for m in messages if isinstance(m["content"], list) for x in m["content"] if x["type"] == "image"]
            out, k = [], 0
            for t in ids:
                if t == pad and k < len(imgs):
                    w, h = imgs[k]["data"].size
                    n = max(4, math.ceil(w / 28) * math.ceil(h / 28))  # Qwen2-VL like
                    out += [pad] * n
                    mm.append({"tokens": n})
                    k += 1
                else:
                    out.append(t)
            return {"prompt": input_prompt, "input_ids": out, "multimodal": mm}

    vle.ImageEncoder = FakeEncoder

import lmdeploy.pytorch.engine  # noqa: F401  (proves the pytorch engine package imports without CUDA)  # isort: skip
from lmdeploy.cli.entrypoint import run

here = os.path.join(sys.prefix, "models")
sys.argv = [
    "lmdeploy",
    "serve",
    "api_server",
    args.model or os.path.join(here, "m_vlm" if args.vlm else "m_llm"),
    "--backend",
    "pytorch",
    "--server-name",
    "127.0.0.1",
    "--server-port",
    str(args.port),
    "--model-name",
    "fake-model",
    "--session-len",
    str(args.session_len),
    "--max-batch-size",
    str(args.max_batch_size),
    "--num-gpu-blocks",
    str(args.blocks),
    "--cache-block-seq-len",
    str(args.block_size),
    *rest,
]
run()
