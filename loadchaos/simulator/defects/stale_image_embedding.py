"""An image gets the embedding of another one encoded in the same step."""

from loadchaos.simulator.engine.rules import EngineRules

NAME = "stale_image_embedding"
ABOUT = "of several images encoded in one step, the later ones are answered from another image's embedding, silently"
UPSTREAM = "https://github.com/vllm-project/vllm/issues/55547"
REMEDIES: dict[str, object] = {"max_num_seqs": 1}


def plant(rules: EngineRules) -> None:
    """Mix up embeddings of images that are encoded in one step."""
    rules.stale_joint_embeddings = True
