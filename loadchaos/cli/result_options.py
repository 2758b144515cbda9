"""Options of `loadchaos run` that write or print the result of vllm bench."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from loadchaos.cli.common import PATH, Given, flag, named_values, option
from loadchaos.cli.help import in_group
from loadchaos.core.errors import OptionError

if TYPE_CHECKING:
    from loadchaos.report.export.vllm_bench import BenchFigures
    from loadchaos.run.finalize import Result

_WITH_FILE = ("save_detailed", "result_dir", "result_filename", "label", "metadata")
result_options = in_group(
    "Result as of vllm bench",
    flag("--save-result", "Write the result as JSON with the keys of vllm bench serve."),
    flag("--save-detailed", "Also write lists with a value for each request."),
    option("--result-dir", "Folder of the result.", "DIR", type=PATH),
    option("--result-filename", "File name of the result.", "NAME"),
    option("--label", "Begin of its file name.", "TEXT"),
    option("--metadata", "More keys of the result. Repeatable.", "KEY=VALUE", multiple=True),
    option("--percentile-metrics", "ttft,tpot,itl,e2el: print them as vllm bench does.", "LIST"),
    option("--metric-percentiles", "Percentiles of these, e.g. 50,90,99 (default: 99).", "LIST"),
)


def figures_of(options: Given) -> BenchFigures | None:
    """The figures that are asked for; None: none are. Raises OptionError for options that have no effect."""
    if not options["save_result"] and (useless := [name for name in _WITH_FILE if options[name]]):
        raise OptionError(f"--{useless[0].replace('_', '-')} has no effect without --save-result: give that, too")
    _metadata(options)
    if not (options["save_result"] or options["percentile_metrics"] or options["metric_percentiles"]):
        return None
    from loadchaos.report.export.vllm_bench import BenchFigures

    return BenchFigures.parse(
        options["percentile_metrics"], options["metric_percentiles"], detailed=options["save_detailed"]
    )


def _metadata(options: Given) -> dict[str, str]:
    given = named_values("--metadata", options["metadata"], "KEY=VALUE")
    return {key: value.strip() for key, value in given.items()}


def show(result: Result, figures: BenchFigures | None, options: Given) -> str:
    if figures is None or result.verdict is None:
        return ""
    from loadchaos.report.export import vllm_bench

    found = vllm_bench.result(result.folder, result.verdict, figures)
    found["label"] = options["label"]
    found |= _metadata(options)
    lines = []
    if options["percentile_metrics"] or options["metric_percentiles"]:
        lines.append(vllm_bench.text(found, figures))
    if options["save_result"]:
        path = (options["result_dir"] or Path()) / (options["result_filename"] or vllm_bench.file_name(found))
        vllm_bench.save(found, path)
        lines.append(f"result: {path}")
    return "\n".join(lines)
