"""Independent oracle: the weight_digest of a checkpoint directory, as weights_sync/digest.h defines it."""
import json
import pathlib
import struct
import sys

import xxhash

CHUNK = 1 << 20


def tensors_of(path):
    data = path.read_bytes()
    (header_bytes,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + header_bytes])
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = (8 + header_bytes + offset for offset in entry["data_offsets"])
        yield name, entry["dtype"], entry["shape"], data[begin:end]


def tensor_digest(data):
    chunks = (data[at : at + CHUNK] for at in range(0, len(data), CHUNK))
    return xxhash.xxh3_128_digest(b"".join(map(xxhash.xxh3_128_digest, chunks)))


def sized(text):
    data = text.encode()
    return struct.pack("<I", len(data)) + data


tensors = [t for path in pathlib.Path(sys.argv[1]).glob("*.safetensors") for t in tensors_of(path)]
canonical = b"warproll weights 1\n" + struct.pack("<Q", len(tensors))
for name, dtype, shape, data in sorted(tensors, key=lambda t: t[0].encode()):
    canonical += sized(name) + sized(dtype)
    canonical += struct.pack(f"<I{len(shape)}q", len(shape), *shape) + tensor_digest(data)
print(xxhash.xxh3_128_hexdigest(canonical))
