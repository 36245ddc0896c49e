"""The layers that moe_peers.py measures: in Triton and around torch._grouped_mm, their weights and routes,
and the time of one."""
import os
import statistics
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

DEVICE = "cuda"
SEED = 1
HIDDEN, INNER, EXPERTS, TOP_K = 2048, 768, 128, 8
GROUP = 128  # columns (and rows, of a weight) of an FP8 scale
E4M3_MAX = 448.0


class Config(NamedTuple):
    """A GEMM tile, pairs x outputs x depth; `swap`: the weights are the left operand (wgmma)."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int
    swap: bool = False

    def __str__(self):
        shape = f"{self.block_m}x{self.block_n}x{self.block_k}"
        return f"{shape}/w{self.warps}s{self.stages}{'t' if self.swap else ''}"


# fmt: off
CANDIDATES = {
    "bf16": [Config(*c) for c in (
        (16, 64, 128, 4, 4), (16, 64, 64, 4, 6, True), (16, 64, 128, 4, 4, True),
        (16, 128, 64, 4, 4, True), (16, 128, 128, 8, 3, True), (32, 64, 128, 4, 4, True),
        (32, 128, 64, 4, 4), (64, 64, 128, 4, 3, True), (64, 128, 64, 4, 4), (128, 128, 64, 8, 4),
    )],
    "fp8": [Config(*c) for c in (
        (16, 64, 128, 4, 3, True), (16, 64, 128, 4, 6, True), (16, 128, 128, 4, 3, True),
        (16, 128, 128, 4, 4, True), (64, 64, 128, 4, 4), (128, 128, 128, 8, 4),
    )],
}


@triton.jit(do_not_specialize=["num_pairs", "block_m"])
def sort_pairs(
    topk_ids, rows, block_expert, num_blocks, num_pairs, block_m, PAIRS: tl.constexpr,
    EXPERTS: tl.constexpr, MAX_BLOCK_M: tl.constexpr,
):
    """One program an expert: its pairs in `rows`, filled up with -1 to whole blocks of block_m."""
    expert = tl.program_id(0)
    pair = tl.arange(0, PAIRS)
    routed = tl.load(topk_ids + pair, mask=pair < num_pairs, other=EXPERTS)
    bins = tl.arange(0, 2 * EXPERTS)
    blocks = (tl.histogram(routed, 2 * EXPERTS) + block_m - 1) // block_m
    first = tl.sum(tl.where(bins < expert, blocks, 0))
    own = (routed == expert).to(tl.int32)
    count = tl.sum(own)
    own_blocks = (count + block_m - 1) // block_m
    tl.store(rows + first * block_m + tl.cumsum(own) - 1, pair, mask=own != 0)
    pad = count + tl.arange(0, MAX_BLOCK_M)
    tl.store(rows + first * block_m + pad, -1, mask=pad < own_blocks * block_m)
    tl.store(block_expert + first + pair, expert, mask=pair < own_blocks)
    if expert == EXPERTS - 1:
        tl.store(num_blocks, first + own_blocks)


@triton.jit
def row_pass(
    src, dst, scales, WIDTH: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr,
    SILU: tl.constexpr, QUANTISE: tl.constexpr, LARGEST: tl.constexpr,
):
    """One program a row: src, or silu(gate) * up of src = [gate, up]; to FP8 by groups if asked."""
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, GROUPS)
    at = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    inside = at < WIDTH
    if SILU:
        gate = tl.load(src + row * 2 * WIDTH + at, mask=inside, other=0.0).to(tl.float32)
        up = tl.load(src + row * 2 * WIDTH + WIDTH + at, mask=inside, other=0.0).to(tl.float32)
        value = gate * tl.sigmoid(gate) * up
    else:
        value = tl.load(src + row * WIDTH + at, mask=inside, other=0.0).to(tl.float32)
    if QUANTISE:
        scale = tl.maximum(tl.max(tl.abs(value), axis=1), 1e-10) / LARGEST
        value = value / scale[:, None]
        tl.store(scales + row * (WIDTH // GROUP) + group, scale, mask=group < WIDTH // GROUP)
    tl.store(dst + row * WIDTH + at, value.to(dst.dtype.element_ty), mask=inside)


@triton.jit
def grouped_gemm(
    x, x_scales, w, w_scales, out, rows, block_expert, num_blocks, pair_weights, N: tl.constexpr,
    DEPTH: tl.constexpr, PAIRS_PER_ROW: tl.constexpr, WEIGHTED: tl.constexpr, FP8: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    SWAP: tl.constexpr,
):
    """out[pair] = w[expert] x[pair / PAIRS_PER_ROW]; a program: BLOCK_N outputs of a pair block."""
    block = tl.program_id(1)
    if block >= tl.load(num_blocks):
        return
    expert = tl.load(block_expert + block).to(tl.int64)
    pair = tl.load(rows + block * BLOCK_M + tl.arange(0, BLOCK_M))
    valid = pair >= 0
    row = pair // PAIRS_PER_ROW
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x_at = x + row[:, None] * DEPTH + k[None, :]
    w_at = w + expert * N * DEPTH + n[:, None] * DEPTH + k[None, :]
    if FP8:  # a tile's scales are loaded one step ahead; its outputs share one weight scale
        GROUPS: tl.constexpr = DEPTH // GROUP
        x_scale_at = x_scales + row * GROUPS
        n_group = expert * (N // GROUP) + tl.program_id(0) * BLOCK_N // GROUP
        w_scale_at = w_scales + n_group * GROUPS
        scale = tl.load(x_scale_at, mask=valid, other=0.0) * tl.load(w_scale_at)
    acc = tl.zeros((BLOCK_N, BLOCK_M) if SWAP else (BLOCK_M, BLOCK_N), tl.float32)
    for step in range(DEPTH // BLOCK_K):
        if FP8:
            ahead = tl.minimum(step + 1, GROUPS - 1)
            next_x_scale = tl.load(x_scale_at + ahead, mask=valid, other=0.0)
            next_scale = next_x_scale * tl.load(w_scale_at + ahead)
        x_tile = tl.load(x_at + step * BLOCK_K, mask=valid[:, None], other=0.0)
        w_tile = tl.load(w_at + step * BLOCK_K)
        if SWAP:
            product = tl.dot(w_tile, tl.trans(x_tile))
        else:
            product = tl.dot(x_tile, tl.trans(w_tile))
        if FP8:
            product *= scale[None, :] if SWAP else scale[:, None]
            scale = next_scale
        acc += product
    if SWAP:
        acc = tl.trans(acc)
    if WEIGHTED:
        acc *= tl.load(pair_weights + pair, mask=valid, other=0.0)[:, None]
    tl.store(out + pair[:, None] * N + n[None, :], acc.to(tl.bfloat16), mask=valid[:, None])


@triton.jit
def sum_of_token(pairs, y, WIDTH: tl.constexpr, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """y[t] = the sum of a token's TOP_K rows: one program, BLOCK outputs of a token."""
    token = tl.program_id(0)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = token * TOP_K + tl.arange(0, TOP_K)
    terms = tl.load(pairs + row[:, None] * WIDTH + n[None, :]).to(tl.float32)
    tl.store(y + token * WIDTH + n, tl.sum(terms, axis=0).to(tl.bfloat16))
# fmt: on


class Route(NamedTuple):
    ids: "torch.Tensor"  # I32 [T, K], distinct in a token
    weights: "torch.Tensor"  # F32 [T, K]


def random_route(routing, tokens, rng):
    """Experts drawn one after another, without return (a top-k of Gumbel keys draws just so)."""
    probability = torch.ones(EXPERTS)
    if routing == "zipf":
        probability = 1.0 / (torch.randperm(EXPERTS, generator=rng) + 1.0)
    drawn = 1 if routing == "same" else tokens
    uniform = torch.rand(drawn, EXPERTS, generator=rng).clamp(1e-7, 1 - 1e-7)
    keys = probability.log() - torch.log(-torch.log(uniform))
    ids = keys.topk(TOP_K).indices.int().expand(tokens, TOP_K).contiguous()
    weights = 0.05 + 0.2 * torch.rand(tokens, TOP_K, generator=rng)
    return Route(ids.to(DEVICE), weights.to(DEVICE))


def random_layer(dtype):
    """(weights, scales) of gate_up [E, 2I, H], gate rows first, and of down [E, H, I]."""
    layer = []
    for rows, columns in ((2 * INNER, HIDDEN), (HIDDEN, INNER)):
        w = torch.empty(EXPERTS, rows, columns, device=DEVICE, dtype=torch.bfloat16)
        w.normal_(0.0, 0.02)
        scales = None
        if dtype == "fp8":
            blocks = w.float().view(EXPERTS, rows // GROUP, GROUP, columns // GROUP, GROUP)
            scales = blocks.abs().amax((2, 4)) / E4M3_MAX
            w = (blocks / scales[:, :, None, :, None]).to(torch.float8_e4m3fn).view(w.shape)
        layer.append((w, scales))
    return layer


def max_blocks(pairs, block_m):
    experts = min(pairs, EXPERTS)
    return experts + (pairs - experts) // block_m


class TritonMoe:
    """The fused layer over the kernels above. `choose` comes first: it sets the two tiles."""

    def __init__(self, layers, routes, x, dtype):
        self.layers, self.routes, self.x, self.fp8 = layers, routes, x, dtype == "fp8"
        self.tokens, self.pairs = x.shape[0], x.shape[0] * TOP_K
        most = max(int(route.ids.flatten().bincount().max()) for route in routes)
        self.candidates = [c for c in CANDIDATES[dtype] if c.block_m < max(2 * most, 17)]
        self.configs = self.candidates[:1] * 2  # of gate_up and down, with one block_m

        def empty(*shape, dtype=torch.bfloat16):
            return torch.empty(shape, dtype=dtype, device=DEVICE)

        blocks = [max_blocks(self.pairs, c.block_m) for c in self.candidates]
        padded = max(count * c.block_m for count, c in zip(blocks, self.candidates))
        sizes = (padded, max(blocks), 1)  # rows, block_expert, num_blocks
        self.lists = [[empty(size, dtype=torch.int32) for size in sizes] for _ in layers]
        operand = torch.float8_e4m3fn if self.fp8 else torch.bfloat16
        self.x_operand = empty(self.tokens, HIDDEN, dtype=operand) if self.fp8 else x
        self.x_scales = empty(self.tokens, HIDDEN // GROUP, dtype=torch.float32)
        self.gate_up_out = empty(self.pairs, 2 * INNER)
        self.h = empty(self.pairs, INNER, dtype=operand)
        self.h_scales = empty(self.pairs, INNER // GROUP, dtype=torch.float32)
        self.down_out = empty(self.pairs, HIDDEN)
        self.y = empty(self.tokens, HIDDEN)

    def sort(self, i):
        ids, block_m = self.routes[i].ids, self.configs[0].block_m
        pairs = triton.next_power_of_2(max(self.pairs, 64))
        sort_pairs[(EXPERTS,)](ids, *self.lists[i], self.pairs, block_m, pairs, EXPERTS, 128)

    def row_pass(self, src, dst, scales, silu, quantise):
        rows, width = dst.shape
        groups = triton.next_power_of_2(width // GROUP)
        row_pass[(rows,)](src, dst, scales, width, groups, GROUP, silu, quantise, E4M3_MAX)

    def gemm(self, i, down, config, compile_only=False):
        if down:
            x, x_scales, out = self.h, self.h_scales, self.down_out
        else:
            x, x_scales, out = self.x_operand, self.x_scales, self.gate_up_out
        w, w_scales = self.layers[i][down]
        _, n, depth = w.shape
        tile = (config.block_m, config.block_n, config.block_k, config.swap)
        grouped_gemm.run(
            *(x, x_scales, w, w_scales, out, *self.lists[i], self.routes[i].weights),
            *(n, depth, 1 if down else TOP_K, down, self.fp8, GROUP, *tile),
            grid=(n // config.block_n, max_blocks(self.pairs, config.block_m)),
            num_warps=config.warps,
            num_stages=config.stages,
            warmup=compile_only,
        )

    def run(self, i):
        self.sort(i)
        if self.fp8:
            self.row_pass(self.x, self.x_operand, self.x_scales, silu=False, quantise=True)
        self.gemm(i, False, self.configs[0])
        self.row_pass(self.gate_up_out, self.h, self.h_scales, silu=True, quantise=self.fp8)
        self.gemm(i, True, self.configs[1])
        sum_of_token[(self.tokens, HIDDEN // 512)](self.down_out, self.y, HIDDEN, TOP_K, 512)
        return self.y

    def choose(self, verbose):
        """The fastest tiles of equal block_m, the two GEMMs timed one by one."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = [(0, down, c, True) for c in self.candidates for down in (False, True)]
            list(pool.map(lambda job: self.gemm(*job), jobs))
        self.run(0)  # the operands of what is timed below
        fastest = []
        for block_m in sorted({c.block_m for c in self.candidates}):
            configs = [c for c in self.candidates if c.block_m == block_m]
            self.configs = configs[:1] * 2
            self.prepare_gemms()
            best = []
            for down in (False, True):
                timed = []
                for c in configs:
                    us = layer_us(lambda i: self.gemm(i, down, c), len(self.layers), replays=5)
                    timed.append((us, c))
                    if verbose:
                        print(f"  {'down' if down else 'gate_up':8s} {c!s:18s} {us:8.2f} us")
                best.append(min(timed))
            fastest.append((best[0][0] + best[1][0], [best[0][1], best[1][1]]))
        self.configs = min(fastest)[1]

    def prepare_gemms(self):
        for i in range(len(self.layers)):
            self.sort(i)

    def run_gemms(self, i):
        self.gemm(i, False, self.configs[0])
        self.gemm(i, True, self.configs[1])


class GroupedMmMoe:
    """The layer around torch._grouped_mm; the routing weights are folded into h, before down."""

    def __init__(self, layers, routes, x):
        self.layers, self.routes, self.x = layers, routes, x
        self.expert_ids = torch.arange(EXPERTS, dtype=torch.int32, device=DEVICE)
        self.configs = []

    def gathered(self, i):
        sorted_ids, order = self.routes[i].ids.view(-1).sort()
        ends = torch.searchsorted(sorted_ids, self.expert_ids, right=True, out_int32=True)
        return self.x[order // TOP_K], order, ends

    def run(self, i):
        (gate_up, _), (down, _) = self.layers[i]
        x, order, ends = self.gathered(i)
        gate, up = torch._grouped_mm(x, gate_up.mT, offs=ends).chunk(2, dim=1)
        h = F.silu(gate).mul_(up).mul_(self.routes[i].weights.view(-1, 1)[order])
        terms = torch._grouped_mm(h, down.mT, offs=ends)
        pairs = torch.empty_like(terms).index_copy_(0, order, terms)
        return pairs.view(-1, TOP_K, HIDDEN).sum(1)

    def prepare_gemms(self):
        self.prepared = [self.gathered(i) for i in range(len(self.layers))]
        self.h = torch.randn(self.x.shape[0] * TOP_K, INNER, device=DEVICE, dtype=torch.bfloat16)

    def run_gemms(self, i):
        (gate_up, _), (down, _) = self.layers[i]
        x, _, ends = self.prepared[i]
        torch._grouped_mm(x, gate_up.mT, offs=ends)
        torch._grouped_mm(self.h, down.mT, offs=ends)


def layer_us(run, num_layers, replays):
    """Microseconds a layer: the median replay of a CUDA graph of all layers."""

    def all_layers():
        for i in range(num_layers):
            run(i)

    all_layers()  # compiles and loads what is new
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_layers()
    for _ in range(3):
        graph.replay()
    events = []
    for _ in range(replays):
        events.append([torch.cuda.Event(enable_timing=True) for _ in range(2)])
        events[-1][0].record()
        graph.replay()
        events[-1][1].record()
    torch.cuda.synchronize()
    ms = statistics.median(begin.elapsed_time(end) for begin, end in events)
    return ms * 1e3 / num_layers
