"""`loadchaos images`: build or list the corpus of difficult images."""

from __future__ import annotations

from pathlib import Path

import click

from loadchaos.cli.common import writing


@click.group()
def images() -> None:
    """Build or list the corpus of images that are difficult for servers."""


@images.command("build")
@click.argument("folder", type=click.Path(path_type=Path), default=Path("images"))
def build_images(folder: Path) -> None:
    """Generate every image of the corpus in FOLDER (default: images/).

    Also writes manifest.json, which `images list` reads.
    """
    from loadchaos.load.payloads.image_corpus import build

    with writing(folder, "name a folder that can be written"):
        written = build(folder)
    click.echo(f"{folder}: wrote {len(written)} images and manifest.json")


@images.command("list")
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False), required=False)
def list_images(folder: Path | None) -> None:
    """List the images and the correct answer of a server to each.

    FOLDER is a corpus that `images build` wrote (default: the shipped one).
    """
    from loadchaos.core import resources
    from loadchaos.load.payloads.image_corpus import read

    for entry in read(folder or resources.folder("images")):
        click.echo(f"{entry.file:22} {entry.right:8} {entry.pixels:12} {entry.what}")
