import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadchaos.analysis.figures.refusals import QUOTA_SPENT
from loadchaos.analysis.oracles import ORACLES
from loadchaos.analysis.verdict.model import CheckResult
from loadchaos.core import errors
from loadchaos.report.phrases import advice_text

PACKAGE = Path(__file__).parent.parent / "loadchaos"
OURS = {
    name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.LoadchaosError)
}
# What was expected, what there is to choose from, what to type or to look at, or what to do in the field's words.
NEXT = re.compile(
    r"expected|as in|such as|is each|is a YAML|spaces$|loadchaos \w+|"
    r"one of|one at a time|it has|there are|its params? (is|are)|is a number|not below|check that|\?|--\w|`|"
    r"\b(give|names?|choose|take|export|run|end|move|leave|load|write|set|add|see|look|start|free|needs?|says?|say|let|belongs)\b"
)
MAKES_ITS_OWN = {
    "next_step", "how_to_read", "_hint", "hint", "how_to_reach", "found", "reason", "mistakes", "lines", "_BRING",
    "way_out", "instead", "READ_THE_LOG",
}  # fmt: skip
"""Names in a message that end it with what to do, or are whole messages themselves."""
PASSED_ON = {
    ("cli/sim.py", "str(e)"), ("campaigns/soak/state.py", "home"), ("load/worker/locust_user.py", "why"),
    ("run/children.py", "output"), ("load/worker/locust_user.py", "finished.stderr"),
    ("run/server_under_test.py", "e"), ("cli/common.py", "e"), ("profile/source.py", "text"),
    ("profile/source.py", "e"), ("load/cluster/join.py", "answer.data"), ("campaigns/hunt/workers.py", "reason"),
    ("campaigns/campaign.py", "missing"), ("campaigns/hunt/workers.py", "str(answer['error'])"),
    ("cli/suite.py", "probed.trouble"), ("cli/doctor.py", "str(e)"), ("profile/slo.py", "expected"), ("profile/slo.py", "e"),
}  # fmt: skip


def text_of(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(v) for v in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    if isinstance(node, ast.List):
        return "".join(text_of(v) for v in node.elts)
    if isinstance(node, ast.IfExp):
        return text_of(node.body) + text_of(node.orelse)
    return " "


def names_in(node: ast.expr) -> set[str]:
    return {ast.unparse(n) for n in ast.walk(node) if isinstance(n, ast.Name | ast.Attribute | ast.Call)}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
            yield node.func.id, node


def raised() -> Iterator[tuple[str, int, ast.expr]]:
    """(file, line, message) of every error of ours that is made."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for name, call in calls(path):
            if name in OURS:
                yield str(path.relative_to(PACKAGE)), call.lineno, call.args[0]


def test_every_error_of_ours_says_what_to_do() -> None:
    found = list(raised())
    assert len(found) > 120
    silent = [
        f"{file}:{line}: {ast.unparse(message)}"
        for file, line, message in found
        if not NEXT.search(text_of(message))
        and not any(name.partition("(")[0].rpartition(".")[2] in MAKES_ITS_OWN for name in names_in(message))
        and not any((file, name) in PASSED_ON for name in names_in(message))
    ]
    assert silent == []


def test_a_message_that_leaves_one_alone_would_be_seen() -> None:
    assert not NEXT.search("the plan cannot be read: it is broken")
    assert NEXT.search("the port is in use; --port names another")


def checks() -> Iterator[str]:
    """The name of every check of the judge that can leave the verdict unknown."""
    for path in sorted((PACKAGE / "analysis").rglob("*.py")):
        for name, call in calls(path):
            if name != "CheckResult":
                continue
            decision = call.args[-1]
            if "unknown" in ast.unparse(decision) or isinstance(decision, ast.Name):
                yield text_of(call.args[0]).strip() or next(iter(ORACLES.values())).check
    yield from (oracle.check for oracle in ORACLES.values())  # the base of the oracles makes their checks


def test_checks_of_the_analysis_are_found() -> None:
    assert len(set(checks())) > 10


@pytest.mark.parametrize("name", sorted(set(checks())))
def test_a_condition_that_was_not_met_says_what_to_do(name: str) -> None:
    assert advice_text(CheckResult(name, "", "", "unknown"))
    assert not advice_text(CheckResult(name, "", "", "pass"))


def test_what_to_do_about_requests_that_were_not_sent_depends_on_why() -> None:
    def told(actual: str) -> str:
        return advice_text(CheckResult("load_delivered", "", actual, "unknown"))

    assert (
        told("87.5% (7 of 8; 1 missed: no_slot)")
        == "use a larger max_in_flight (--max-concurrency) or a lower rate: every slot was taken"
    )
    both = told("50.0% (8 of 16; 4 missed: no_slot, 4 missed: server_down)")
    assert both.endswith("every slot was taken; use a server that stays up, or run longer")
    assert "fewer users or a lower rate" in told("50.0% (4 of 8)")


def test_a_quota_that_is_used_up_is_no_reason_for_a_lower_rate() -> None:
    assert advice_text(CheckResult("shed", "", "16.7%", "unknown")).startswith("use fewer users or a lower rate")
    advice = advice_text(CheckResult("shed", "", f"16.7%, {QUOTA_SPENT}", "unknown"))
    assert advice == "raise the quota or the budget of the API key; a lower rate does not help"
