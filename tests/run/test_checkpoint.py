from loadchaos.run.checkpoint import Checkpoint


def test_checkpoint_each_hour_has_all_counts_so_far() -> None:
    it = Checkpoint()
    assert it.due(100.0) is None
    for n in range(3):
        it.fold({"row": "begin", "step": n})
        it.fold({"row": "end", "outcome": "ok"})
    it.fold({"row": "missed", "count": 4})
    assert it.due(3699.0) is None
    figures = it.due(3700.0)
    assert figures is not None
    assert {k: figures[k] for k in ("n", "begun", "outcomes", "step")} == {
        "n": 1,
        "begun": 3,
        "outcomes": {"ok": 3, "missed": 4},
        "step": 2,
    }
    assert figures["rss_bytes"] > 1_000_000
    assert it.describe(figures) == "checkpoint 1 after 1 h: 4 missed, 3 ok"
    assert it.due(3701.0) is None
    later = it.due(7300.0)
    assert later is not None
    assert later["n"] == 2
