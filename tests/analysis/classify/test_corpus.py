from scripts.real.startup_failures import counterpart, mistakes
from tests.crash_logs import CRASHES


def test_corpus_has_as_many_benign_logs_as_crashes() -> None:
    benign = list((CRASHES / "benign").glob("*.log"))
    crashes = [p for p in CRASHES.rglob("*.log") if p.parent.name != "benign" and not p.name.startswith("start-")]
    assert len(benign) >= len(crashes)


def test_corpus_has_a_log_of_every_speaker() -> None:
    speakers = {"cuda", "gateway", "go", "host", "llamacpp", "lmdeploy", "memory", "nccl", "sglang", "tensorrt_llm"}
    speakers |= {"transformers", "vllm"}
    assert {p.parent.name for p in CRASHES.rglob("*.log")} == speakers | {"benign"}


def test_failed_starts_have_logs_of_the_same_start_that_works() -> None:
    for server, speaker, version in (("vllm-0.32.0", "vllm", "0.32"), ("lmdeploy-0.18.0", "lmdeploy", "0.18")):
        failed = {
            p.stem.removeprefix("start-").removesuffix(f"-{version}") for p in (CRASHES / speaker).glob("start-*.log")
        }
        right = {counterpart(server, m).name for m in mistakes(server) if m.name in failed}
        kept = {name for name in right if (CRASHES / f"benign/{speaker}-start-{name}-{version}.log").exists()}
        assert right == kept
        assert len(kept) >= 6
