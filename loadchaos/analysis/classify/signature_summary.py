"""Summary of a signature, as `loadchaos signatures` prints it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from loadchaos.analysis.classify.signature_file import Signature, Signatures
from loadchaos.analysis.verdict.model import KnownIssue


@dataclass(frozen=True, kw_only=True)
class VariantSummary:
    """A variant of a signature: its title, and frames that show it."""

    title: str
    frames: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class SignatureSummary:
    """A signature with the known issues of all its variants. The fields are the keys of its JSON."""

    id: str
    title: str
    severity: str
    role: str
    speaker: str
    layer: str
    versions: str
    trigger: str
    why: str
    remedy: str
    patterns: tuple[str, ...]
    examples: tuple[str, ...]
    refines: tuple[str, ...]
    variants: tuple[VariantSummary, ...]
    known: tuple[KnownIssue, ...]

    @classmethod
    def of(cls, s: Signature, signatures: Signatures) -> SignatureSummary:
        others = ("speaker", "patterns", "variants", "known")
        return cls(
            **{f.name: getattr(s, f.name) for f in fields(cls) if f.name not in others},
            speaker=s.file.removesuffix(".toml"),
            patterns=tuple(p.pattern for p in s.patterns),
            variants=tuple(VariantSummary(title=v.title, frames=v.frames) for v in s.variants),
            known=signatures.issues(dict.fromkeys((*s.known, *(k for v in s.variants for k in v.known)))),
        )
