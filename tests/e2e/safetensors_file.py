"""A tiny safetensors reader and writer, independent of the C++ one (NumPy; BF16 as uint16, FP8 as uint8)."""
import json
import struct

import numpy

DTYPES = {"F32": "<f4", "I32": "<i4", "I64": "<i8", "BF16": "<u2", "U8": "u1", "F8_E4M3": "u1"}


def read(path):
    """{name: (dtype, array)}, in the order of the file."""
    with open(path, "rb") as file:
        data = file.read()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, info in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = (8 + size + offset for offset in info["data_offsets"])
        array = numpy.frombuffer(data[begin:end], DTYPES[info["dtype"]]).reshape(info["shape"])
        tensors[name] = (info["dtype"], array)
    return tensors


def write(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, array) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(numpy.ascontiguousarray(array).tobytes())
