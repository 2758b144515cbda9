import pytest

from loadchaos.analysis.classify.live import LiveClassifier
from loadchaos.core.units import NS_PER_S as S

START = """\
(APIServer pid=9597) INFO 11-23 19:49:54 [api_utils.py:286] non-default args: {'model_tag': '/models/tiny', 'port': 8233}
(APIServer pid=9597) WARNING 11-23 19:49:54 [system_utils.py:255] Found ulimit of 20000 and failed to automatically increase
Traceback (most recent call last):
  File "/x/huggingface_hub/utils/_validators.py", line 133, in validate_repo_id
    raise HFValidationError(
huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/tiny'.

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/x/vllm/entrypoints/cli/main.py", line 120, in main
    args.dispatch_function(args)
  File "/x/transformers/utils/hub.py", line 595, in cached_files
    raise OSError(f"{e}") from e
OSError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/tiny'.
"""
MORE = "(APIServer pid=9597) INFO 11-23 19:49:56 [api_utils.py:286] goes on\n"


@pytest.mark.parametrize("exit_after_s", [0, 1, 5, 60])
@pytest.mark.parametrize(
    ("text", "died", "ids"), [(START, True, ["model_not_found"]), (START + MORE, True, []), (START, False, [])]
)
def test_traceback_after_a_warning_is_a_cause_where_it_ends_the_process(
    exit_after_s: int, text: str, died: bool, ids: list[str]
) -> None:
    # vLLM needs seconds to exit. The lines of a start were judged by then, as those of a mere warning.
    live = LiveClassifier()
    for n, line in enumerate(text.splitlines(), 1):
        live.on_log({"row": "log", "at_ns": S, "file": "server.log", "source": "server", "line": n, "text": line}, S)
    for second in range(exit_after_s):
        assert live.poll((second + 2) * S) == []
    assert [failure.id for failure in live.poll(None, died=died)] == ids
