"""3 x 3 convolutions with padding 1, forward and backward, as products of matrices."""

import triton
import triton.language as tl


@triton.jit
def convolve(
    x, weight, bias, y, now, M, stride,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, RELU: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """3 x 3, padding 1: y = relu(x * weight + bias). weight: (CO, 3, 3, CI) at every row."""
    slot = tl.program_id(1)
    k = tl.load(now + slot)
    if k >= 0:
        row = k.to(tl.int64) * stride
        tiles: tl.constexpr = CO // BN
        pid = tl.program_id(0)
        m = (pid // tiles) * BM + tl.arange(0, BM)
        n = (pid % tiles) * BN + tl.arange(0, BN)
        w_at = m % W
        h_at = (m // W) % H
        kk = tl.arange(0, BK)
        xs = x + slot.to(tl.int64) * M * CI
        ws = weight + row
        total = tl.zeros((BM, BN), tl.float32)
        if CI % BK == 0:
            per: tl.constexpr = CI // BK
            for i in range(9 * per):
                tap = i // per
                c = (i % per) * BK
                dh = tap // 3 - 1
                dw = tap % 3 - 1
                ok = (h_at + dh >= 0) & (h_at + dh < H) & (w_at + dw >= 0) & (w_at + dw < W)
                a = tl.load(
                    xs + ((m + dh * W + dw) * CI)[:, None] + (c + kk)[None, :],
                    mask=ok[:, None], other=0.0,
                )  # fmt: skip
                b = tl.load(ws + (n * (9 * CI))[None, :] + (tap * CI + c + kk)[:, None])
                total = tl.dot(a, b, total)
        else:  # few channels: all taps side by side
            for j0 in range(0, 9 * CI, BK):
                j = j0 + kk
                tap = j // CI
                dh = tap // 3 - 1
                dw = tap % 3 - 1
                h = h_at[:, None] + dh[None, :]
                v = w_at[:, None] + dw[None, :]
                ok = (h >= 0) & (h < H) & (v >= 0) & (v < W) & (j < 9 * CI)[None, :]
                at = (m * CI)[:, None] + ((dh * W + dw) * CI + j % CI)[None, :]
                a = tl.load(xs + at, mask=ok, other=0.0)
                b = tl.load(ws + (n * (9 * CI))[None, :] + j[:, None], mask=(j < 9 * CI)[:, None],
                            other=0.0)  # fmt: skip
                total = tl.dot(a, b, total)
        total += tl.load(bias + row + n).to(tl.float32)[None, :]
        if RELU:
            total = tl.maximum(total, 0.0)
        ys = y + slot.to(tl.int64) * M * CO
        tl.store(ys + (m * CO)[:, None] + n[None, :], total.to(tl.bfloat16))


@triton.jit
def convolve_back(
    dz, weight, x, dx, now, M, stride,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, MASK: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradient of a convolution's input; with MASK, 0 where the input is (the ReLU before)."""
    slot = tl.program_id(1)
    k = tl.load(now + slot)
    if k >= 0:
        tiles: tl.constexpr = CI // BN
        pid = tl.program_id(0)
        m = (pid // tiles) * BM + tl.arange(0, BM)
        n = (pid % tiles) * BN + tl.arange(0, BN)
        w_at = m % W
        h_at = (m // W) % H
        kk = tl.arange(0, BK)
        zs = dz + slot.to(tl.int64) * M * CO
        ws = weight + k.to(tl.int64) * stride
        total = tl.zeros((BM, BN), tl.float32)
        per: tl.constexpr = CO // BK
        for i in range(9 * per):
            tap = i // per
            c = (i % per) * BK
            dh = 1 - tap // 3
            dw = 1 - tap % 3
            ok = (h_at + dh >= 0) & (h_at + dh < H) & (w_at + dw >= 0) & (w_at + dw < W)
            a = tl.load(
                zs + ((m + dh * W + dw) * CO)[:, None] + (c + kk)[None, :],
                mask=ok[:, None], other=0.0,
            )  # fmt: skip
            b = tl.load(ws + ((c + kk) * (9 * CI))[:, None] + (tap * CI + n)[None, :])
            total = tl.dot(a, b, total)
        at = slot.to(tl.int64) * M * CI + (m * CI)[:, None] + n[None, :]
        if MASK:
            total = tl.where(tl.load(x + at) > 0, total, 0.0)
        tl.store(dx + at, total.to(tl.bfloat16))


@triton.jit
def convolve_weights(
    dz, x, parts, now, M,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, SPLIT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradient of a convolution's weights, in SPLIT parts over the positions.

    parts: (slots, SPLIT, CO, 3, 3, CI) in float32. A program has a row of three taps.
    """
    slot = tl.program_id(1)
    if tl.load(now + slot) >= 0:
        split = tl.program_id(2)
        across: tl.constexpr = CI // BN
        down: tl.constexpr = CO // BM
        pid = tl.program_id(0)
        row = pid // (down * across)
        dh = row - 1
        o = ((pid // across) % down) * BM + tl.arange(0, BM)
        c = (pid % across) * BN + tl.arange(0, BN)
        kk = tl.arange(0, BK)
        zs = dz + slot.to(tl.int64) * M * CO
        xs = x + slot.to(tl.int64) * M * CI
        left = tl.zeros((BM, BN), tl.float32)
        middle = tl.zeros((BM, BN), tl.float32)
        right = tl.zeros((BM, BN), tl.float32)
        span = M // SPLIT
        for j in range(0, span, BK):
            m = split * span + j + kk
            h = (m // W) % H + dh
            v = m % W
            ok = (h >= 0) & (h < H)
            a = tl.trans(tl.load(zs + (m * CO)[:, None] + o[None, :]))
            at = xs + ((m + dh * W) * CI)[:, None] + c[None, :]
            one = tl.load(at - CI, mask=(ok & (v > 0))[:, None], other=0.0)
            two = tl.load(at, mask=ok[:, None], other=0.0)
            three = tl.load(at + CI, mask=(ok & (v < W - 1))[:, None], other=0.0)
            left = tl.dot(a, one, left)
            middle = tl.dot(a, two, middle)
            right = tl.dot(a, three, right)
        part = (slot * SPLIT + split).to(tl.int64) * CO
        to = parts + (part + o)[:, None] * (9 * CI) + (row * 3 * CI + c)[None, :]
        tl.store(to, left)
        tl.store(to + CI, middle)
        tl.store(to + 2 * CI, right)


@triton.jit
def convolve_weights_few(
    dz, x, parts, now, M,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, SPLIT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The same for few channels: a program has all taps side by side, 9 CI <= BN."""
    slot = tl.program_id(1)
    if tl.load(now + slot) >= 0:
        split = tl.program_id(2)
        o = tl.program_id(0) * BM + tl.arange(0, BM)
        j = tl.arange(0, BN)
        tap = j // CI
        dh = tap // 3 - 1
        dw = tap % 3 - 1
        shift = (dh * W + dw) * CI + j % CI
        kk = tl.arange(0, BK)
        zs = dz + slot.to(tl.int64) * M * CO
        xs = x + slot.to(tl.int64) * M * CI
        total = tl.zeros((BM, BN), tl.float32)
        span = M // SPLIT
        for i in range(0, span, BK):
            m = split * span + i + kk
            h = ((m // W) % H)[:, None] + dh[None, :]
            v = (m % W)[:, None] + dw[None, :]
            ok = (h >= 0) & (h < H) & (v >= 0) & (v < W) & (j < 9 * CI)[None, :]
            a = tl.load(zs + (m * CO)[:, None] + o[None, :])
            b = tl.load(xs + (m * CI)[:, None] + shift[None, :], mask=ok, other=0.0)
            total = tl.dot(tl.trans(a), b, total)
        part = (slot * SPLIT + split).to(tl.int64) * CO
        to = parts + (part + o)[:, None] * (9 * CI) + j[None, :]
        tl.store(to, total, mask=(j < 9 * CI)[None, :])


@triton.jit
def convolve_bias(
    dz, parts, now, M,
    CO: tl.constexpr, WIDTH: tl.constexpr, SPLIT: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradient of a convolution's bias, in SPLIT parts: (slots, SPLIT, CO); CO <= WIDTH."""
    slot = tl.program_id(1)
    if tl.load(now + slot) >= 0:
        split = tl.program_id(0)
        c = tl.arange(0, WIDTH)
        kk = tl.arange(0, BK)
        zs = dz + slot.to(tl.int64) * M * CO
        total = tl.zeros((BK, WIDTH), tl.float32)
        span = M // SPLIT
        for j in range(0, span, BK):
            m = split * span + j + kk
            at = zs + (m * CO)[:, None] + c[None, :]
            total += tl.load(at, mask=(c < CO)[None, :], other=0.0).to(tl.float32)
        tl.store(parts + (slot * SPLIT + split) * CO + c, tl.sum(total, axis=0), mask=c < CO)


@triton.jit
def gather(parts, out, now, size, stride, SPLIT: tl.constexpr, BLOCK: tl.constexpr):
    """out[client] = sum over the parts: (slots, SPLIT, size) to rows of (clients, stride)."""
    slot = tl.program_id(1)
    k = tl.load(now + slot)
    if k >= 0:
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        part = slot.to(tl.int64) * SPLIT + tl.arange(0, SPLIT)
        at = (part * size)[:, None] + i[None, :]
        ok = i < size
        total = tl.sum(tl.load(parts + at, mask=ok[None, :], other=0.0), axis=0)
        tl.store(out + k.to(tl.int64) * stride + i, total, mask=ok)
