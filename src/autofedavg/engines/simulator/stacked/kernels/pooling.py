"""2 x 2 maxima with dropout after them."""

import triton
import triton.language as tl


@triton.jit
def pool(
    y, p, now, seeds, steps, salt, size,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, DROP: tl.constexpr, KEEP: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """2 x 2 maxima of (slots, B, H, W, C); then DROP: 0 nothing, 1 whole channels, 2 elements."""
    slot = tl.program_id(1)
    k = tl.load(now + slot)
    if k >= 0:
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        ok = i < size
        c = i % C
        q = i // C
        w = q % (W // 2)
        h = (q // (W // 2)) % (H // 2)
        n = q // ((W // 2) * (H // 2))
        at = y + slot.to(tl.int64) * (size * 4) + ((n * H + 2 * h) * W + 2 * w) * C + c
        top = tl.maximum(tl.load(at, mask=ok), tl.load(at + C, mask=ok))
        low = tl.maximum(tl.load(at + W * C, mask=ok), tl.load(at + W * C + C, mask=ok))
        value = tl.maximum(top, low)
        if DROP:
            where = n * C + c if DROP == 1 else i
            seed = tl.load(seeds + k) + salt
            chance = tl.rand(seed, tl.load(steps + k) * size + where)
            value = tl.where(chance < KEEP, value.to(tl.float32) / KEEP, 0.0).to(tl.bfloat16)
        tl.store(p + slot.to(tl.int64) * size + i, value, mask=ok)


@triton.jit
def pool_back(
    y, p, g, dz, now, size,
    H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, KEEP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Through dropout, maxima and the ReLU before them; the first of equal maxima has it all."""
    slot = tl.program_id(1)
    if tl.load(now + slot) >= 0:
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        ok = i < size
        c = i % C
        q = i // C
        w = q % (W // 2)
        h = (q // (W // 2)) % (H // 2)
        n = q // ((W // 2) * (H // 2))
        at = slot.to(tl.int64) * (size * 4) + ((n * H + 2 * h) * W + 2 * w) * C + c
        one = tl.load(y + at, mask=ok)
        two = tl.load(y + at + C, mask=ok)
        three = tl.load(y + at + W * C, mask=ok)
        four = tl.load(y + at + W * C + C, mask=ok)
        here = slot.to(tl.int64) * size + i
        # What was dropped, or had no positive maximum, is 0 in p.
        gone = tl.load(p + here, mask=ok, other=0.0) <= 0
        slope = tl.load(g + here, mask=ok, other=0.0)
        if KEEP < 1:
            slope = (slope.to(tl.float32) / KEEP).to(tl.bfloat16)
        none = tl.zeros_like(slope)
        slope = tl.where(gone, none, slope)
        most = tl.maximum(tl.maximum(one, two), tl.maximum(three, four))
        is_1 = one == most
        is_2 = (two == most) & (one != most)
        is_3 = (three == most) & (one != most) & (two != most)
        is_4 = (one != most) & (two != most) & (three != most)
        tl.store(dz + at, tl.where(is_1, slope, none), mask=ok)
        tl.store(dz + at + C, tl.where(is_2, slope, none), mask=ok)
        tl.store(dz + at + W * C, tl.where(is_3, slope, none), mask=ok)
        tl.store(dz + at + W * C + C, tl.where(is_4, slope, none), mask=ok)
