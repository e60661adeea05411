"""Linear layers and the step on parameters, which theirs take at once."""

import triton
import triton.language as tl


@triton.jit
def descended(p, m, s, start, how, at, slope, ok, PULL: tl.constexpr):
    """SGD with momentum and weight decay, in float32; s is p in bfloat16.

    how: step size, momentum, weight decay, pull towards the start.
    """
    value = tl.load(p + at, mask=ok, other=0.0)
    slope += tl.load(how + 2) * value
    if PULL:
        slope += tl.load(how + 3) * (value - tl.load(start + at, mask=ok, other=0.0))
    speed = tl.load(how + 1) * tl.load(m + at, mask=ok, other=0.0) + slope
    value -= tl.load(how) * speed
    tl.store(m + at, speed, mask=ok)
    tl.store(p + at, value, mask=ok)
    tl.store(s + at, value.to(tl.bfloat16), mask=ok)


@triton.jit
def descend(p, m, g, s, start, how, now, size, stride, PULL: tl.constexpr, BLOCK: tl.constexpr):
    """A step on the first `size` parameters of every row."""
    slot = tl.program_id(1)
    k = tl.load(now + slot)
    if k >= 0:
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        ok = i < size
        at = k.to(tl.int64) * stride + i
        descended(p, m, s, start, how, at, tl.load(g + at, mask=ok, other=0.0), ok, PULL)


@triton.jit
def linear(
    x, weight, bias, y, now, seeds, steps, salt, stride,
    B: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, RELU: tl.constexpr, KEEP: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Y = dropout(relu(x weight' + bias)); weight: (CO, CI) at every row. CO may be any number."""
    slot = tl.program_id(1)
    k = tl.load(now + slot)
    if k >= 0:
        row = k.to(tl.int64) * stride
        b = tl.arange(0, B)
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        kk = tl.arange(0, BK)
        xs = x + slot.to(tl.int64) * B * CI
        total = tl.zeros((B, BN), tl.float32)
        for i in range(0, CI, BK):
            a = tl.load(xs + (b * CI)[:, None] + (i + kk)[None, :])
            at = weight + row + (n * CI)[None, :] + (i + kk)[:, None]
            v = tl.load(at, mask=(n < CO)[None, :], other=0.0)
            total = tl.dot(a, v, total)
        total += tl.load(bias + row + n, mask=n < CO, other=0.0).to(tl.float32)[None, :]
        if RELU:
            total = tl.maximum(total, 0.0)
        here = (b * CO)[:, None] + n[None, :]
        if KEEP < 1:
            chance = tl.rand(tl.load(seeds + k) + salt, tl.load(steps + k) * (B * CO) + here)
            total = tl.where(chance < KEEP, total / KEEP, 0.0)
        tl.store(y + slot.to(tl.int64) * B * CO + here, total.to(y.dtype.element_ty),
                 mask=(n < CO)[None, :])  # fmt: skip


@triton.jit
def linear_back(
    dz, weight, x, dx, now, stride,
    B: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, MASK: tl.constexpr, KEEP: tl.constexpr,
    BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradient of the input; with MASK, through the dropout and the ReLU that made it."""
    slot = tl.program_id(1)
    k = tl.load(now + slot)
    if k >= 0:
        b = tl.arange(0, B)
        n = tl.program_id(0) * BN + tl.arange(0, BN)
        kk = tl.arange(0, BK)
        zs = dz + slot.to(tl.int64) * B * CO
        ws = weight + k.to(tl.int64) * stride
        total = tl.zeros((B, BN), tl.float32)
        for o in range(0, CO, BK):
            ok = o + kk < CO
            a = tl.load(zs + (b * CO)[:, None] + (o + kk)[None, :], mask=ok[None, :], other=0.0)
            v = tl.load(ws + ((o + kk) * CI)[:, None] + n[None, :], mask=ok[:, None], other=0.0)
            total = tl.dot(a, v, total)
        at = slot.to(tl.int64) * B * CI + (b * CI)[:, None] + n[None, :]
        if MASK:
            total = tl.where(tl.load(x + at) > 0, total / KEEP, 0.0)
        tl.store(dx + at, total.to(tl.bfloat16))


@triton.jit
def linear_weights(
    dz, x, p, m, g, s, start, how, now, stride, weight, bias,
    B: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, LEARN: tl.constexpr, PULL: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The gradient of weights (CO, CI) and bias, which lie at `weight` and `bias` of every row.

    With LEARN the step on them is taken at once, and the gradient is never written.
    """
    slot = tl.program_id(1)
    k = tl.load(now + slot)
    if k >= 0:
        row = k.to(tl.int64) * stride
        tiles: tl.constexpr = CI // BN
        pid = tl.program_id(0)
        o = (pid // tiles) * BM + tl.arange(0, BM)
        n = (pid % tiles) * BN + tl.arange(0, BN)
        b = tl.arange(0, B)
        ok = o < CO
        zs = dz + slot.to(tl.int64) * B * CO
        a = tl.load(zs + (b * CO)[:, None] + o[None, :], mask=ok[None, :], other=0.0)
        v = tl.load(x + slot.to(tl.int64) * B * CI + (b * CI)[:, None] + n[None, :])
        total = tl.dot(tl.trans(a), v)
        at = row + weight + (o * CI)[:, None] + n[None, :]
        all_ok = ok[:, None] & (n < CI)[None, :]
        if LEARN:
            descended(p, m, s, start, how, at, total, all_ok, PULL)
        else:
            tl.store(g + at, total, mask=all_ok)
        if pid % tiles == 0:
            sums = tl.sum(a.to(tl.float32), axis=0)
            if LEARN:
                descended(p, m, s, start, how, row + bias + o, sums, ok, PULL)
            else:
                tl.store(g + row + bias + o, sums, mask=ok)
