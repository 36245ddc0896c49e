"""An arith checkpoint with many more experts: large enough that a transfer can be caught under way.
The added experts are copies, so its answers are not arith's; its shape, digest and size are the point."""
import json
import shutil

import numpy

import safetensors_file


def write(source, target, num_experts):
    shutil.copytree(source, target)
    config = json.loads((target / "config.json").read_text())
    few = config["num_local_experts"]
    config["num_local_experts"] = num_experts
    (target / "config.json").write_text(json.dumps(config))
    tensors = safetensors_file.read(target / "model.safetensors")
    made = {}
    for name, (dtype, array) in tensors.items():
        if name.endswith("mlp.gate.weight"):
            made[name] = (dtype, numpy.resize(array, (num_experts, array.shape[1])))
        elif ".experts." in name:
            before, after = name.split(".experts.")
            expert, rest = after.split(".", 1)
            for copy in range(int(expert), num_experts, few):
                made[f"{before}.experts.{copy}.{rest}"] = (dtype, array)
        else:
            made[name] = (dtype, array)
    safetensors_file.write(target / "model.safetensors", made)
    return target
