"""Dense attention: the explicit reference and the backend on torch's own kernels.

Every implementation has one signature, `attend(q, k, v, *, scale=None) -> out`, with q
[B, S, H, D], k and v [B, T, H, D], out [B, S, H, D] in q's dtype; `scale` defaults to 1/sqrt(D).
One that declares `mask` also takes `mask`, bool [B, T]: False where a key takes no part; every row
keeps at least one key.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, mask: Tensor | None = None
) -> Tensor:
    """softmax(q·kᵀ·scale)·v written out in float32 (float64 for float64 input), rounded once.

    It holds all B·H·S·T scores: for tests and tiny models, not for video.
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    scores = torch.einsum("bshd,bthd->bhst", q.to(wide), k.to(wide)) * factor
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], float("-inf"))
    return torch.einsum("bhst,bthd->bshd", scores.softmax(dim=-1), v.to(wide)).to(q.dtype)


def sdpa_order(arch: int) -> list[SDPBackend]:
    """Torch's attention kernels for CUDA architecture `arch` (90 is Hopper), best first.

    From 9.0 on cuDNN comes first: at video shapes it is 1.6 times as fast as flash on an H200, and
    it takes [B, S, H, D] strides for free. A kernel that refuses the inputs is passed over.
    """
    rest = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return [SDPBackend.CUDNN_ATTENTION, *rest] if arch >= 90 else rest


def sdpa_backend(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, mask: Tensor | None = None
) -> Tensor:
    """`attend` through `torch.nn.functional.scaled_dot_product_attention`; no copies, no host sync.

    Runs on every device; on CUDA the kernel is chosen in the order of `sdpa_order`.
    """
    heads_first = (q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    keys = None if mask is None else mask[:, None, None]  # b 1 1 t
    if not q.is_cuda or torch.version.hip:
        out = F.scaled_dot_product_attention(*heads_first, attn_mask=keys, scale=scale)
        return out.transpose(1, 2)
    major, minor = torch.cuda.get_device_capability(q.device)
    with sdpa_kernel(sdpa_order(10 * major + minor), set_priority=True):
        out = F.scaled_dot_product_attention(*heads_first, attn_mask=keys, scale=scale)
    return out.transpose(1, 2)
