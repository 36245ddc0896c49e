"""Copies of arith-v1, each with one thing wrong."""
import json
import shutil
import struct

import numpy

import safetensors_file

NORM = "model.norm.weight"
EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"


def copy_of(source, target):
    shutil.copytree(source, target)
    return target


def with_config(source, target, **changes):
    copy_of(source, target)
    config = json.loads((target / "config.json").read_text())
    config.update(changes)
    (target / "config.json").write_text(json.dumps(config))
    return target


def with_tensors(source, target, change):
    """change(tensors) edits the dictionary of (dtype, array)."""
    copy_of(source, target)
    tensors = safetensors_file.read(target / "model.safetensors")
    change(tensors)
    safetensors_file.write(target / "model.safetensors", tensors)
    return target


def nan_weights(source, target):
    def change(tensors):
        dtype, array = tensors[EXPERT]
        array = array.copy()
        array[5, 7] = 0x7FC0  # a BF16 NaN
        tensors[EXPERT] = (dtype, array)
    return with_tensors(source, target, change)


def missing_tensor(source, target):
    return with_tensors(source, target, lambda tensors: tensors.pop(EXPERT))


def extra_tensor(source, target):
    return with_tensors(source, target, lambda tensors: tensors.update({"model.bonus.weight": tensors[NORM]}))


def misshaped_tensor(source, target):
    def change(tensors):
        dtype, array = tensors[EXPERT]
        tensors[EXPERT] = (dtype, numpy.ascontiguousarray(array[:-1]))
    return with_tensors(source, target, change)


def truncated(source, target):
    copy_of(source, target)
    path = target / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    return target


def rewritten_header(source, target, rewrite):
    """rewrite(header) edits the JSON header; the data stays."""
    copy_of(source, target)
    path = target / "model.safetensors"
    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + size])
    rewrite(header)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + size:])
    return target


def overlapping(source, target):
    def rewrite(header):
        header[NORM]["data_offsets"] = header[EXPERT]["data_offsets"][:1] * 2
        header[NORM]["data_offsets"][1] += 2 * header[NORM]["shape"][0]
    return rewritten_header(source, target, rewrite)


def huge_header(source, target):
    copy_of(source, target)
    path = target / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 60) + path.read_bytes()[8:])
    return target


def bad_tokenizer(source, target):
    copy_of(source, target)
    text = (target / "tokenizer.json").read_text()
    (target / "tokenizer.json").write_text(text[:len(text) // 2])
    return target
