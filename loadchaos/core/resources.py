"""Paths of shipped files (profiles, schemas, ...), wheel or checkout."""

from __future__ import annotations

from pathlib import Path

from loadchaos.core.errors import OptionError, did_you_mean

_PACKAGE = Path(__file__).parent.parent


def folder(name: str) -> Path:
    """Find a shipped folder such as `profiles`, in the wheel or checkout."""
    packed = _PACKAGE / "_shipped" / name
    return packed if packed.is_dir() else _PACKAGE.parent / name


def profiles() -> dict[str, Path]:
    return {p.stem: p for p in sorted(folder("profiles").glob("*.yaml"))}


def profile(name_or_path: str) -> Path:
    """Find a profile by path, then by shipped name. Raises OptionError with the most similar name."""
    path = Path(name_or_path)
    if path.is_file():
        return path
    known = profiles()
    if name_or_path in known:
        return known[name_or_path]
    if path.is_dir():
        inside = path / "profile.yaml"
        hint = f": {inside} is one" if inside.is_file() else ""
        more = f"; --resume {path} continues an interrupted run" if (path / "events.jsonl").exists() else ""
        raise OptionError(f"{name_or_path} is a folder; a profile is a YAML file{hint}{more}")
    if "://" in name_or_path:
        raise OptionError(
            f"{name_or_path} is no profile: give a profile and the URL, e.g. `smoke --target {name_or_path}`"
        )
    near = [name for name in known if len(path.stem) > 2 and path.stem in name]
    hint = f"; did you mean {near[0]}?" if near else did_you_mean(path.stem, known)
    raise OptionError(f"no profile {name_or_path!r}: neither a file nor one of {', '.join(known)}{hint}")
