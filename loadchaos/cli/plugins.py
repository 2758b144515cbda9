"""`loadchaos plugins`: what installed packages add."""

from __future__ import annotations

import click

from loadchaos.cli.common import json_option, print_result


@click.command()
@json_option()
def plugins(as_json: bool) -> None:
    """List the plugins of installed packages, and say why one does not work."""
    from loadchaos import api
    from loadchaos.analysis.classify import signature_file
    from loadchaos.core.plugins import PluginError, installed

    signature_file.load()  # which finds mistakes in those of plugins
    found = []
    for plugin in installed():
        state = "ok"
        if plugin.kind not in api.TABLES:
            state = f"loadchaos has no {plugin.kind}; a plugin is one of {', '.join(api.TABLES)}"
        else:
            try:
                api.TABLES[plugin.kind][plugin.name]
            except PluginError as e:
                state = str(e)
        row = {"name": plugin.name, "kind": plugin.kind, "package": plugin.package, "version": plugin.version}
        found.append({**row, "state": state})
    print_result(
        as_json,
        lambda: found,
        lambda: (
            "\n".join(
                f"{p['kind']:14} {p['name']:20} {p['package']} {p['version']}  {_shown(p['state'])}" for p in found
            )
            or "no plugins are installed"
        ),
    )


def _shown(state: str) -> str:
    return state if state == "ok" else f"warning: {state}"
