"""Stand in for the compiled operators of sgl_kernel; installed as common_ops.py, which sgl_kernel imports.

SGLang with SGLANG_USE_CPU_ENGINE=1 and --attention-backend torch_native computes with torch on a CPU without AMX. Its model
files only look these names up when they are imported. A call of one of them raises.
"""

import torch

_OPERATORS = torch.library.Library("sgl_kernel", "FRAGMENT")
for _name in (
    "fused_moe_router_cpu",
    "fused_qk_gemma_rmsnorm_cpu",
    "fused_qk_gemma_rmsnorm_with_gate_cpu",
    "fused_qkvzba_split_reshape_cat_contiguous_cpu",
    "fused_sigmoid_mul_cpu",
):
    _OPERATORS.define(f"{_name}(Tensor x) -> Tensor")
