from pathlib import Path

import pytest

from loadchaos.campaigns.hunt import gene_file
from loadchaos.core.errors import ProfileError


def test_gene_file_gives_values_and_absent_genes(tmp_path: Path) -> None:
    file = tmp_path / "genes.yaml"
    file.write_text("traffic: {images: false, tokens: [64, 32..512]}\nload: {users: [4]}\n")
    found = gene_file.read(file)
    assert found == {"traffic": {"images": False, "tokens": [64, "32..512"]}, "load": {"users": [4]}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("traffic: {image: false}", r"genes.yaml:1:11: traffic.image: images was expected"),
        ("trafic: {}", r"genes.yaml:1:1: trafic: traffic was expected"),
        ("traffic: [images]", r"genes.yaml:1:\d+: traffic: genes with their values were expected"),
        ("traffic:\n  top_k: 5", r"genes.yaml:2:\d+: traffic.top_k: false or a list such as \[1, 20\] was expected"),
        ("traffic: {tokens: false}", r"traffic.tokens: a list of values was expected: every workload has this gene"),
        ("traffic: {tokens: [9..3]}", r"traffic.tokens.0: a value such as 63, .* a range goes from low to high: 3..9"),
        ("load: {users: [x]}", r"load.users.0: a value such as 1, 2, 4, 8, 16, 32 was expected: \(got 'x'\)"),
        ("attacks: {admin: [reset_cache]}", r"attacks.admin.0: a value such as reset_mm_cache, .*reset_mm_cache\?"),
        (
            "traffic: {near_limit: [0]}",
            r"traffic.near_limit.0: a value such as \{.*\} was expected: \(got 0\); .* is false",
        ),
        ("traffic: {schema: ['']}", r"traffic.schema.0: .* \(got ''\); a gene that is not used is false"),
        ("traffic: {image_size: [7]}", r"traffic.image_size.0: a value such as 64x64"),
    ],
)
def test_gene_file_tells_each_mistake(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "genes.yaml"
    file.write_text(text)
    with pytest.raises(ProfileError, match=message):
        gene_file.read(file)
