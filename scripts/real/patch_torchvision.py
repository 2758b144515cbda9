"""Make a CUDA build of torchvision importable with a CPU build of torch; run it with the venv's python."""

import pathlib
import sys

extension = next(f for d in sys.path if (f := pathlib.Path(d) / "torchvision" / "extension.py").is_file())
text = extension.read_text()
mark = "# --- stub for a CPU torch ---"
if mark not in text:
    extension.write_text(
        text
        + f"""

{mark}
if not _has_ops():
    _stub_lib = torch.library.Library("torchvision", "DEF")
    for _s in (
        "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
        "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    ):
        try:
            _stub_lib.define(_s)
        except RuntimeError:
            pass
"""
    )
print("patched torchvision/extension.py")
