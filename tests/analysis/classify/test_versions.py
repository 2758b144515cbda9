import pytest

from loadchaos.analysis.classify.versions import standing, with_standing
from loadchaos.analysis.verdict.model import KnownIssue
from loadchaos.core.typed_json import from_json
from tests.analysis.conftest import History


@pytest.mark.parametrize(
    ("issue", "version", "words"),
    [
        ({"fixed": "0.27.1"}, "0.18.0", "lacks the fix"),
        ({"fixed": "0.27.1"}, "0.32.0", "should have the fix. Report upstream"),
        ({"fixed": "0.8.5.post1 with --disable-chunked-mm-input"}, "0.18.0", "only with --disable-chunked-mm-input"),
        ({"fixed": "0.27.1", "affected": ">=0.11.0, <0.27.1"}, "0.10.0", "older than the affected versions"),
        ({"affected": ">=0.11.0, <=0.13.0"}, "0.12.0", "an affected version"),
        ({"affected": ">=0.11.0, <=0.13.0"}, "0.14.0", "not an affected version"),
        ({"fixed": "vllm-project/vllm#34220"}, "0.18.0", "you run 0.18.0"),
    ],
)
def test_standing_of_an_issue_for_a_version(issue: dict[str, str], version: str, words: str) -> None:
    assert words in standing(from_json(KnownIssue, issue), version)


def test_standing_leaves_other_projects_and_unknown_versions_alone() -> None:
    known = (KnownIssue(issue="vllm-project/vllm#38551", fixed="0.27.1"),)
    assert with_standing(known, "lmdeploy", "0.6.0") == known
    assert with_standing(known, "vllm", None) == known
    other = (KnownIssue(issue="a/b#1"),)
    assert with_standing(other, "vllm", "0.18.0") == other


def test_verdict_has_the_standing_of_known_issues(history: History) -> None:
    [failure] = history.begin(kv_blocks=1).work(5).miss().idle(3).end().verdict()["failures"]
    [known] = [k for k in failure["known"] if k["issue"] == "vllm-project/vllm#38551"]
    assert (known["you_run"], known["standing"]) == ("0.18.0", "you run 0.18.0, which lacks the fix")
