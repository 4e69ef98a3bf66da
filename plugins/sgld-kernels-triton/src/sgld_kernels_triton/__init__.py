"""Fused elementwise kernels in Triton: a norm or a residual sum reads each operand once."""
