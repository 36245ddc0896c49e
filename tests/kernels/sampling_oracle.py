"""Independent oracle for kernels/sampling.h and kernels/philox.h, written from their comments.

Reads cases from stdin as JSON lines, answers one JSON line each:
  {"logits_hex": "<F32 little-endian hex>", "temperature", "top_p", "top_k", "min_p",
   "seed", "sample_index", "position"}
  -> {"uniform_hex", "token_id", "logprob", "raw_logprob", "support_logmass", "support_size"}
Philox is written with Python integers, the selection with numpy.lexsort over the whole vocabulary.
"""
import json
import math
import sys

import numpy as np

MASK = 0xFFFFFFFF


def philox4x32_10(counter, key):
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0 = 0xD2511F53 * c0
        p1 = 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & MASK, (p0 >> 32) ^ c3 ^ k1, p0 & MASK
        k0 = (k0 + 0x9E3779B9) & MASK
        k1 = (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


def uniform(seed, sample_index, position):
    words = philox4x32_10((position, 0, sample_index, 0), (seed & MASK, seed >> 32))
    return ((words[1] << 32 | words[0]) >> 11) * 2.0**-53


def log_softmax(scaled):
    shifted = scaled - scaled.max()
    return shifted - math.log(np.cumsum(np.exp(shifted))[-1])


def sample(logits, temperature, top_p, top_k, min_p, u):
    vocab = len(logits)
    wide = logits.astype(np.float64)
    raw = log_softmax(wide)
    if temperature == 0:
        best = int(np.argmax(wide))  # the first of equal maxima
        return best, raw[best], raw[best], 0.0, 1
    scaled = wide / float(np.float32(temperature))
    order = np.lexsort((np.arange(vocab), -wide))
    weights = np.exp(scaled - scaled.max())
    total = float(np.cumsum(weights)[-1])
    head = np.cumsum(weights[order])  # C_1, C_2, ...
    keep = top_k if 0 < top_k < vocab else vocab
    mass_k = total if keep == vocab else head[keep - 1]
    n = keep
    if np.float32(top_p) < 1:
        crossing = np.nonzero(head[:keep] >= float(np.float32(top_p)) * mass_k)[0]
        n = int(crossing[0]) + 1 if len(crossing) else keep
    if min_p > 0:
        n = min(n, int((weights >= float(np.float32(min_p))).sum()))
    mass = total if n == vocab else head[n - 1]
    beyond = np.nonzero(head[:n] > u * mass)[0]
    rank = int(beyond[0]) if len(beyond) else int(np.nonzero(weights[order][:n] > 0)[0][-1])
    token = int(order[rank])
    logprob = scaled[token] - scaled.max() - math.log(mass)
    return token, logprob, raw[token], min(0.0, math.log(mass / total)), n


def main():
    for line in sys.stdin:
        case = json.loads(line)
        logits = np.frombuffer(bytes.fromhex(case["logits_hex"]), dtype="<f4")
        u = uniform(case["seed"], case["sample_index"], case["position"])
        token, logprob, raw, mass, size = sample(
            logits, case["temperature"], case["top_p"], case["top_k"], case["min_p"], u)
        print(json.dumps({"uniform_hex": float(u).hex(), "token_id": token,
                          "logprob": float(logprob), "raw_logprob": float(raw),
                          "support_logmass": float(mass), "support_size": int(size)}))


if __name__ == "__main__":
    main()
