"""`loadchaos images`: list a folder of hostile images."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False), required=False)
def images(folder: Path | None) -> None:
    """List images that are difficult for servers, each with its correct answer.

    FOLDER is a folder of your own, with or without a manifest.json (default: the shipped images).
    """
    from loadchaos.core import resources
    from loadchaos.load.payloads.image_folder import read

    for entry in read(folder or resources.folder("images")):
        click.echo(f"{entry.file:22} {entry.right:8} {entry.pixels:12} {entry.what}")
