"""`loadchaos images`: the corpus of images that servers stumble over, made and listed."""

from __future__ import annotations

from pathlib import Path

import click

from loadchaos.core.errors import OptionError


@click.group()
def images() -> None:
    """The corpus of images that servers stumble over."""


@images.command("build")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("images"))
def build_images(folder: Path) -> None:
    """Make every image of the corpus anew in FOLDER (images/ here), with manifest.json."""
    from loadchaos.load.payloads.image_corpus import build

    try:
        written = build(folder)
    except OSError as e:
        raise OptionError(f"{folder}: {e.strerror}; name a folder that can be written") from e
    click.echo(f"{folder}: {len(written)} images and their manifest.json")


@images.command("list")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False), required=False)
def list_images(folder: Path | None) -> None:
    """What each image is and what a right server answers; of the shipped corpus, or of FOLDER."""
    from loadchaos.core import resources
    from loadchaos.load.payloads.image_corpus import read

    for entry in read(folder or resources.folder("images")):
        click.echo(f"{entry.file:22} {entry.right:8} {entry.pixels:12} {entry.what}")
