#!/usr/bin/env python3
"""The peers of our MoE kernels, in the conditions of kernels/bench/moe_bench.cpp.

  triton      a fused MoE layer in Triton, written here: the (token, expert) pairs sorted by expert,
              gate_up GEMM, silu(gate) * up, down GEMM with the routing weights, sum over k.
              BF16; or FP8: E4M3 weights with a scale per 128x128 block, activations quantised per
              token and 128 columns inside the timed region. Each GEMM's tile is the fastest of
              CANDIDATES for the batch and the routing. Decode batches alone.
  grouped_mm  the same layer in PyTorch around torch._grouped_mm, BF16: decode batches and, for the
              comparison of prefill, the token counts of --tokens.

A layer has H 2048, I 768, E 128, K 8, weights ~ N(0, 0.02) and x ~ N(0, 1). The weights of several
layers in rotation keep L2 cold; a CUDA graph holds all layers; `us` is its median replay over the
number of layers. Replays are queued without a wait between them: no host time is in `us`. `GEMMs`
is a graph of the two GEMMs alone, the sort done before. What a row times is first compared with
FP32 on four tokens of its batch, and a wrong peer ends the program. No code of others is in here.
"""
import argparse
import json
import sys

PEERS = ("triton", "grouped_mm")
DTYPES = ("bf16", "fp8")
ROUTINGS = ("uniform", "zipf", "same")
MAX_TRITON_TOKENS = 512  # each program of the sort holds every pair of the batch


def parse_options():
    def count(text):
        if not text.isdigit() or int(text) < 1:
            raise argparse.ArgumentTypeError(f"'{text}' is not a number of at least 1")
        return int(text)

    def counts(text):
        return [count(word) for word in text.split(",")] if text else []

    def words(known):
        def parse(text):
            unknown = set(text.split(",")) - set(known)
            if unknown:
                wanted = ", ".join(known)
                raise argparse.ArgumentTypeError(f"'{min(unknown)}' is not one of {wanted}")
            return text.split(",")

        return parse

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def add(name, parse, default, text):
        parser.add_argument(name, type=parse, default=default, help=text + " [%(default)s]")

    add("--batches", counts, "1,2,4,8,16,32,64,128", "tokens of a decode step")
    add("--routings", words(ROUTINGS), ",".join(ROUTINGS), "how experts are drawn")
    add("--dtypes", words(DTYPES), ",".join(DTYPES), "weights; grouped_mm has bf16 alone")
    add("--peers", words(PEERS), ",".join(PEERS), "what to measure")
    add("--layers", count, 6, "layers in rotation")
    add("--replays", count, 31, "timed graph replays")
    add("--tokens", counts, "512,2048,8192", "prefill tokens, for grouped_mm; '' for none")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    parser.add_argument("--join", metavar="FILE", help="bench moe's JSON: give its rows peer_us")
    parser.add_argument("--verbose", action="store_true", help="print every candidate's time")
    options = parser.parse_args()
    if "triton" in options.peers and max(options.batches, default=0) > MAX_TRITON_TOKENS:
        parser.error(f"--batches: the triton peer takes at most {MAX_TRITON_TOKENS} tokens")
    return options


OPTIONS = parse_options() if __name__ == "__main__" else None  # --help needs no PyTorch

try:
    import torch
    import torch.nn.functional as F
    import triton

    from moe_peer_layers import (
        DEVICE,
        EXPERTS,
        GROUP,
        HIDDEN,
        INNER,
        SEED,
        TOP_K,
        GroupedMmMoe,
        TritonMoe,
        layer_us,
        random_layer,
        random_route,
    )
except ImportError as missing:
    sys.exit(f"moe_peers.py: needs PyTorch and Triton: {missing}")

ERROR_LIMIT = {"bf16": 1e-2, "fp8": 6e-2}  # ||y - FP32|| / ||FP32||


def relative_error(moe):
    """Of layer 0 against FP32, on four tokens spread over the batch (all of them, if fewer)."""

    def expert_weights(w, scales, expert):
        if scales is None:
            return w[expert].float()
        wide = scales[expert].repeat_interleave(GROUP, 0).repeat_interleave(GROUP, 1)
        return w[expert].float() * wide

    gate_up, down = moe.layers[0]
    tokens = sorted({t * (moe.x.shape[0] - 1) // 3 for t in range(4)})
    want = torch.zeros(len(tokens), HIDDEN, device=DEVICE)
    for y, t in zip(want, tokens):
        route = zip(moe.routes[0].ids[t].tolist(), moe.routes[0].weights[t].tolist())
        for expert, weight in route:
            gate, up = (expert_weights(*gate_up, expert) @ moe.x[t].float()).chunk(2)
            y += weight * (expert_weights(*down, expert) @ (F.silu(gate) * up))
    return float((moe.run(0)[tokens].float() - want).norm() / want.norm())


def measure(peer, dtype, routing, tokens, layers, options):
    """One row, and its line of the table."""
    rng = torch.Generator().manual_seed(SEED)
    routes = [random_route(routing, tokens, rng) for _ in layers]
    x = torch.randn(tokens, HIDDEN, generator=rng).to(DEVICE, torch.bfloat16)
    if peer == "triton":
        moe = TritonMoe(layers, routes, x, dtype)
        moe.choose(options.verbose)
        moe.y.fill_(float("nan"))
    else:
        moe = GroupedMmMoe(layers, routes, x)
    config = " ".join(str(c) for c in moe.configs)
    error = relative_error(moe)
    if not error < ERROR_LIMIT[dtype]:
        sys.exit(
            f"moe_peers.py: {peer} {dtype} {routing} {tokens} tokens {config}: relative error "
            f"{error:.2e}, wanted under {ERROR_LIMIT[dtype]:.0e}; not reported"
        )
    us = layer_us(moe.run, len(layers), options.replays)
    moe.prepare_gemms()
    gemm_us = layer_us(moe.run_gemms, len(layers), options.replays)
    experts = sum(route.ids.unique().numel() for route in routes) / len(routes)
    line = f"{peer:10s} {dtype:5s} {routing:8s} {tokens:6d} {experts:8.1f} {us:9.2f} {gemm_us:9.2f}"
    print(f"{line} {error:9.1e}  {config}", flush=True)
    row = {"peer": peer, "dtype": dtype, "routing": routing, "batch": tokens}
    return row | {"us": round(us, 3), "gemm_us": round(gemm_us, 3), "config": config}


def join(path, rows):
    """Our rows in `path` get peer and peer_us: the fastest peer of their dtype, routing, batch."""
    with open(path, encoding="utf-8") as file:
        ours = json.load(file)
    for row in ours["rows"]:
        dtype = "bf16" if row["dtype"] == "bf16" else "fp8"
        key = (dtype, row["routing"], row["batch"])
        peers = [r for r in rows if (r["dtype"], r["routing"], r["batch"]) == key]
        if peers:
            best = min(peers, key=lambda r: r["us"])
            row |= {"peer": best["peer"], "peer_us": best["us"]}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(ours, file, indent=1)


def main(options):
    if not torch.cuda.is_available():
        sys.exit("moe_peers.py: no CUDA device here, and it measures on one")
    gpu = torch.cuda.get_device_name()
    if torch.cuda.get_device_capability() < (9, 0):
        sys.exit(f"moe_peers.py: {gpu} is too old, wanted compute capability 9.0 (Hopper)")
    print(
        f"{gpu}, PyTorch {torch.__version__}, Triton {triton.__version__}; H {HIDDEN}, I {INNER}, "
        f"E {EXPERTS}, K {TOP_K}; {options.layers} layers in rotation, median of {options.replays} "
        "graph replays\npeer       dtype routing  tokens  experts        us     GEMMs     error  "
        "tiles of gate_up and down: pairs x outputs x depth / warps, stages, t if transposed"
    )
    torch.manual_seed(SEED)
    layers = {d: [random_layer(d) for _ in range(options.layers)] for d in options.dtypes}
    rows = []
    for routing in options.routings:
        for dtype in options.dtypes:
            for peer in options.peers:
                batches = options.batches
                if peer == "grouped_mm":
                    batches = batches + options.tokens if dtype == "bf16" else []
                for tokens in batches:
                    rows.append(measure(peer, dtype, routing, tokens, layers[dtype], options))
    if options.json:
        result = {"gpu": gpu, "layers": options.layers, "replays": options.replays, "rows": rows}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(result, file, indent=1)
    if options.join:
        join(options.join, rows)


if __name__ == "__main__":
    main(OPTIONS)
