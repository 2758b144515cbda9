"""Report answers whose field `model` names another model than the request. The answer itself stays as it is: a gateway
gives models other names on purpose, which a profile can accept.
"""

from __future__ import annotations

from loadchaos.analysis.detectors.base import Detector
from loadchaos.analysis.wrong_answer import WrongAnswer, wrong_failure
from loadchaos.core.ledger.rows import EndRow


class OtherModel(Detector):
    """Folds end rows."""

    def on_end(self, row: EndRow) -> None:
        if (named := (row.get("detail") or {}).get("other_model")) is None:
            return
        wrong = WrongAnswer(
            "answer_of_another_model", str(row.get("id")), int(row["at_ns"]), "the field model",
            f"model {named} answered", got=str(named), traffic=str(row.get("traffic", "")),
        )  # fmt: skip
        self._pending.append(wrong_failure(wrong))
