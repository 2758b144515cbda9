"""Options of the embedded server: flags, eras and defects. Flags have the real server's names. A mistake is answered
with the nearest known name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace

from loadchaos.core.errors import did_you_mean
from loadchaos.simulator.defects import DEFECTS
from loadchaos.simulator.engine.limits import with_kv_blocks
from loadchaos.simulator.engine.types import EngineConfig, release

DIALECTS = ("vllm", "lmdeploy")

# First and last release that the APIs know.
ERAS = {"vllm": ((0, 8), (0, 33)), "lmdeploy": ((0, 6), (0, 18))}
DEFAULT_ERA = {"vllm": "0.18", "lmdeploy": "0.18"}

# Other defaults of LMDeploy's engine; num_gpu_blocks 0 is computed from its share of memory.
_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "vllm": {},
    "lmdeploy": {
        "block_size": 64,
        "num_gpu_blocks": 0,
        "num_speculative_tokens": 0,
        "enable_prefix_caching": False,
        "async_scheduling": False,
    },
}

_NOT_FLAGS = {"dialect", "defects", "era"}  # have options of their own
_BOOLEANS = {
    **dict.fromkeys(("true", "1", "yes", "on", ""), True),
    **dict.fromkeys(("false", "0", "no", "off"), False),
}
_ALIASES = {
    "session_len": "max_model_len",
    "cache_block_seq_len": "block_size",
    "max_batch_size": "max_num_seqs",
    "num_gpu_blocks_override": "num_gpu_blocks",
    "gpu_memory_utilisation": "gpu_memory_utilization",
    "served_model_name": "model",
    "limit_mm_per_prompt.image": "limit_mm_per_prompt",
    "limit_mm_per_prompt.video": "limit_mm_videos",
    "limit_mm_per_prompt.audio": "limit_mm_audios",
}


@dataclass(frozen=True)
class ServerConfig:
    """Flags of the API server; all other flags go to the engine. `limit_mm_per_prompt`: maximum images per prompt;
    `limit_mm_videos`, `limit_mm_audios`: maximum videos and audio files. Without `images` the model takes text only,
    without `dev_mode` there are no development endpoints. `lora_modules`: names
    of LoRA adapters with a blank between them, or `name=path`. `enable_scale_out`: /render is enabled, in the
    eras that need this flag. `service_tier` is no flag of vLLM: the tier that answers name, as those of a gateway in
    front of it do. `enforce_eager`, `kv_cache_dtype` and the like are not modelled and therefore refused by name.
    """

    model: str = "sim"
    lora_modules: str = ""
    images: bool = True
    dev_mode: bool = True
    limit_mm_per_prompt: int = 999
    limit_mm_videos: int = 999
    limit_mm_audios: int = 0
    enable_prompt_tokens_details: bool = False
    enable_scale_out: bool = False
    service_tier: str = ""
    enable_auto_tool_choice: bool = False
    tool_call_parser: str = ""
    quiet: bool = False
    log_level: str = "DEBUG"


def adapters(config: ServerConfig) -> dict[str, str]:
    named = (module.partition("=") for module in config.lora_modules.split())
    return {name: path or f"/adapters/{name}" for name, _, path in named}


@dataclass(frozen=True)
class Options:
    """All options of the embedded server, checked. `port_is_reserved`: a socket of the caller is bound to the port,
    with SO_REUSEPORT.
    """

    engine: EngineConfig = field(default_factory=EngineConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
    host: str = "127.0.0.1"
    port: int = 0
    flags: Mapping[str, object] = field(default_factory=dict)
    port_is_reserved: bool = False


@dataclass(frozen=True)
class SimulatorSpec:
    """An embedded server as a user asks for it, before any check. `era` None is the dialect's default."""

    dialect: str = "vllm"
    era: str | None = None
    defects: Iterable[str] = ()
    flags: Mapping[str, object] = field(default_factory=dict)


def make_options(spec: SimulatorSpec, *, host: str = "127.0.0.1", port: int = 0) -> Options:
    """Check a spec and return its options. Raises ValueError for an unknown dialect, era, defect or flag, or a bad
    value.
    """
    dialect = spec.dialect
    if dialect not in DIALECTS:
        raise _unknown(dialect, DIALECTS, "dialect")
    chosen_era = _checked_era(dialect, spec.era or DEFAULT_ERA[dialect])
    expected = frozenset(spec.defects)
    for name in sorted(expected):
        if name not in DEFECTS:
            raise _unknown(name, DEFECTS, "defect")
        if DEFECTS[name].dialect != dialect:
            raise ValueError(f"defect {name!r} is one of {DEFECTS[name].dialect}, not of {dialect}")
    engine: dict[str, object] = dict(_DEFAULTS[dialect])
    server: dict[str, object] = {}
    for name, value in spec.flags.items():
        _apply_flag(name, value, engine, server)
    config = replace(EngineConfig(), dialect=dialect, era=chosen_era, defects=expected, **engine)  # type: ignore[arg-type]  # values were checked against the fields' types
    config = with_kv_blocks(config)
    return Options(config, replace(ServerConfig(), **server), host, port, dict(spec.flags))  # type: ignore[arg-type]  # as above


def _unknown(name: str, known: Iterable[str], what: str) -> ValueError:
    names = sorted(known)
    return ValueError(f"unknown {what} {name!r}{did_you_mean(name, names, '; known: ' + ', '.join(names))}")


def _checked_era(dialect: str, era: str) -> str:
    first, last = ERAS[dialect]
    if first <= release(era)[:2] <= last:
        return era
    near = first if release(era)[:2] < first else last
    raise ValueError(f"unknown era {era!r} of {dialect}: did you mean '{near[0]}.{near[1]}'?")


def _apply_flag(name: str, value: object, engine: dict[str, object], server: dict[str, object]) -> None:
    key, parsed = name.lstrip("-").replace("-", "_"), value
    if key.startswith(("no_enable_", "no_async_")):
        key, parsed = key.removeprefix("no_"), False
    key = _ALIASES.get(key, key)
    if isinstance(parsed, Mapping):  # limit_mm_per_prompt's own form
        for part, limit in parsed.items():
            _apply_flag(f"{key}.{part}", limit, engine, server)
        return
    of_engine = {f.name: f for f in fields(EngineConfig) if f.name not in _NOT_FLAGS}
    of_server = {f.name: f for f in fields(ServerConfig)}
    if key in of_engine:
        engine[key] = _parse_value(key, parsed, str(of_engine[key].type))
    elif key in of_server:
        server[key] = _parse_value(key, parsed, str(of_server[key].type))
    else:
        raise _unknown(key, [*of_engine, *of_server, *_ALIASES], "flag")


def _parse_value(name: str, value: object, kind: str) -> object:
    if kind.endswith("| None") and value in (None, "none", "None", ""):
        return None
    expected = kind.removesuffix(" | None")
    if expected == "str":
        return "" if value is None else str(value)
    try:
        if expected == "bool":
            return value if isinstance(value, bool) else _BOOLEANS[str(value).lower()]
        if not isinstance(value, bool):
            return int(str(value).replace("_", "")) if expected == "int" else float(str(value))
    except (KeyError, ValueError):
        pass  # reported below
    raise ValueError(f"flag {name} must be {expected} (got {value!r})")
