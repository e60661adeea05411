"""Mixtures of models, and how a loss changes with their weights.

Rows of parameters are cut into chunks, each within one layer: from `first[c]` on, `size[c]` numbers
of layer `layer[c]`, which has weights of its own. Both are multiples of 16, so that four numbers
are read at a time.
"""

import triton
import triton.language as tl


@triton.jit
def mix(
    bank, alpha, s, clients, first, size, layer, stride, n, K,
    ROWS: tl.constexpr, MODELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The clients' rows of s: their weights of a layer, alpha (P, n, K), times the bank's rows."""
    chunk = tl.program_id(0)
    begin = tl.multiple_of(tl.load(first + chunk), 16)
    length = tl.multiple_of(tl.load(size + chunk), 16)
    mine = alpha + tl.load(layer + chunk) * n * K
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    row = tl.load(clients + r, mask=r < n, other=0).to(tl.int64)
    for start in range(0, length, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total = tl.zeros((ROWS, BLOCK), tl.float32)
        for other in range(0, K, MODELS):
            k = other + tl.arange(0, MODELS)
            known = (r < n)[:, None] & (k < K)[None, :]
            weights = tl.load(mine + r[:, None] * K + k[None, :], mask=known, other=0.0)
            at = k.to(tl.int64)[:, None] * stride + (begin + i)[None, :]
            models = tl.load(bank + at, mask=(k < K)[:, None] & (i < length)[None, :], other=0.0)
            total = tl.dot(weights, models, total, input_precision="tf32x3")
        at = row[:, None] * stride + (begin + i)[None, :]
        tl.store(s + at, total.to(tl.bfloat16), mask=(r < n)[:, None] & (i < length)[None, :])


@triton.jit
def slopes(
    bank, g, parts, clients, first, size, stride, n, K,
    ROWS: tl.constexpr, MODELS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Products of the clients' rows of g with the bank's, chunk by chunk: parts (chunks, n, K)."""
    chunk = tl.program_id(0)
    begin = tl.multiple_of(tl.load(first + chunk), 16)
    length = tl.multiple_of(tl.load(size + chunk), 16)
    r = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    k = tl.program_id(2) * MODELS + tl.arange(0, MODELS)
    row = tl.load(clients + r, mask=r < n, other=0).to(tl.int64)
    total = tl.zeros((ROWS, MODELS), tl.float32)
    for start in range(0, length, BLOCK):
        i = start + tl.arange(0, BLOCK)
        at = row[:, None] * stride + (begin + i)[None, :]
        slope = tl.load(g + at, mask=(r < n)[:, None] & (i < length)[None, :], other=0.0)
        at = k.to(tl.int64)[:, None] * stride + (begin + i)[None, :]
        models = tl.load(bank + at, mask=(k < K)[:, None] & (i < length)[None, :], other=0.0)
        total = tl.dot(slope, tl.trans(models), total, input_precision="tf32x3")
    at = (chunk * n + r[:, None]) * K + k[None, :]
    tl.store(parts + at, total, mask=(r < n)[:, None] & (k < K)[None, :])
