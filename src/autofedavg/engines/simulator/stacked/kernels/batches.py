"""Which clients take a step, their pictures, and the loss on them."""

import triton
import triton.language as tl


@triton.jit
def begin(now, at, table, slots: tl.constexpr, width: tl.constexpr):
    """Now = table[at]: the clients of this step."""
    i = tl.arange(0, width)
    row = tl.load(at).to(tl.int64) * slots
    tl.store(now + i, tl.load(table + row + i, mask=i < slots, other=-1), mask=i < slots)


@triton.jit
def advance(now, at, steps, slots: tl.constexpr, width: tl.constexpr):
    """One step further: for the table, and for every client that took a step."""
    i = tl.arange(0, width)
    k = tl.load(now + i, mask=i < slots, other=-1)
    taken = tl.load(steps + k, mask=k >= 0, other=0)
    tl.store(steps + k, taken + 1, mask=k >= 0)
    tl.store(at, tl.load(at) + 1)


@triton.jit
def pictures(
    images, picks, moves, starts, steps, now, x, mean, scale,
    B: tl.constexpr, SIZE: tl.constexpr, C: tl.constexpr, PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Crops, flips and normalises a batch: bytes (n, C, SIZE, SIZE) to x (slots, B, SIZE, SIZE, C).

    The batch of a client's step j begins at row starts[k] + j of picks and moves (rows of B).
    A move is 2 * ((down * (2 PAD + 1)) + right) + flip.
    """
    slot = tl.program_id(1)
    k = tl.load(now + slot)
    if k >= 0:
        b = tl.program_id(0)
        row = (tl.load(starts + k) + tl.load(steps + k)).to(tl.int64) * B + b
        pick = tl.load(picks + row).to(tl.int64)
        move = tl.load(moves + row).to(tl.int32)
        flip = move % 2
        down = (move // 2) // (2 * PAD + 1) - PAD
        right = (move // 2) % (2 * PAD + 1) - PAD
        i = tl.arange(0, BLOCK)
        ok = i < SIZE * SIZE * C
        c = i % C
        place = i // C
        h = place // SIZE
        w = place % SIZE
        w = tl.where(flip == 1, SIZE - 1 - w, w)
        h = tl.abs(h + down)
        w = tl.abs(w + right)
        h = tl.minimum(h, 2 * (SIZE - 1) - h)
        w = tl.minimum(w, 2 * (SIZE - 1) - w)
        ok = ok & (pick >= 0)
        byte = tl.load(
            images + pick * (SIZE * SIZE * C) + (c * SIZE + h) * SIZE + w, mask=ok, other=0
        )
        value = (byte.to(tl.float32) - tl.load(mean + c)) * tl.load(scale + c)
        out = x + (slot.to(tl.int64) * B + b) * (SIZE * SIZE * C) + i
        tl.store(out, tl.where(ok, value, 0.0).to(tl.bfloat16), mask=i < SIZE * SIZE * C)


@triton.jit
def cross_entropy(
    logits, labels, picks, starts, steps, now, dz, losses,
    B: tl.constexpr, CLASSES: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """The mean over the pictures of a batch that are there, and its gradient."""
    slot = tl.program_id(0)
    k = tl.load(now + slot)
    if k >= 0:
        b = tl.arange(0, B)
        c = tl.arange(0, WIDTH)
        row = (tl.load(starts + k) + tl.load(steps + k)).to(tl.int64)
        pick = tl.load(picks + row * B + b)
        there = pick >= 0
        label = tl.load(labels + pick, mask=there, other=0)
        count = tl.sum(there.to(tl.float32), axis=0)
        at = slot * (B * CLASSES) + (b * CLASSES)[:, None] + c[None, :]
        real = (c < CLASSES)[None, :]
        z = tl.load(logits + at, mask=real, other=-float("inf"))
        z = z - tl.max(z, axis=1)[:, None]
        e = tl.exp(z)
        total = tl.sum(e, axis=1)
        hit = c[None, :] == label[:, None]
        loss = tl.log(total) - tl.sum(tl.where(hit, z, 0.0), axis=1)
        tl.store(losses + row, tl.sum(tl.where(there, loss, 0.0), axis=0) / count)
        slope = tl.where(there[:, None], e / total[:, None] - hit.to(tl.float32), 0.0) / count
        tl.store(dz + at, slope.to(tl.bfloat16), mask=real & (b >= 0)[:, None])
