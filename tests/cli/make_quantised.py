#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes checkpoints as llm-compressor does, with compressed-tensors: scales by its own rule, rounding to the nearest.

    make_quantised.py MODEL KIND…

Each KIND becomes the folder KIND-quantised. Checked with transformers 5.22 and compressed-tensors 0.20.
"""
import json
import os
import shutil
import sys

import torch
import transformers
from compressed_tensors.compressors import ModelCompressor
from compressed_tensors.quantization import QuantizationConfig, QuantizationStatus, apply_quantization_config
from compressed_tensors.quantization.utils import calculate_qparams

INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
TOKENS = {"strategy": "token", "dynamic": True}
KINDS = {
    "w4": ({"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 64}, None, "pack-quantized"),
    "w4-asym": ({"num_bits": 4, "type": "int", "symmetric": False, "strategy": "group", "group_size": 32}, None, "pack-quantized"),
    "w8a16": ({**INT8, "strategy": "group", "group_size": 128}, None, "pack-quantized"),
    "w8a8": ({**INT8, "strategy": "channel"}, {**INT8, **TOKENS}, "int-quantized"),
    "w8a8-tensor": ({**INT8, "strategy": "tensor"}, {**INT8, **TOKENS}, "int-quantized"),
    "fp8": ({**INT8, "type": "float", "strategy": "channel"}, {**INT8, "type": "float", **TOKENS}, "float-quantized"),
}


def set_scales(module):
    arguments = module.quantization_scheme.weights
    weight = module.weight.data
    if arguments.strategy == "group":
        weight = weight.unflatten(-1, (-1, arguments.group_size))
        low, high = weight.amin(-1), weight.amax(-1)
    elif arguments.strategy == "channel":
        low, high = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
    else:
        low, high = weight.min(), weight.max()
    scale, zero = calculate_qparams(low, high, arguments)
    module.weight_scale.data = scale.reshape(module.weight_scale.shape).to(module.weight_scale.dtype)
    if hasattr(module, "weight_zero_point"):
        module.weight_zero_point.data = zero.reshape(module.weight_zero_point.shape).to(module.weight_zero_point.dtype)


def main():
    source = sys.argv[1]
    for kind in sys.argv[2:]:
        weights, inputs, layout = KINDS[kind]
        folder = kind + "-quantised"
        model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype="auto")
        group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "format": layout}
        config = QuantizationConfig(config_groups={"group_0": group}, ignore=["lm_head"], format=layout)
        apply_quantization_config(model, config)
        for module in model.modules():
            if hasattr(module, "quantization_scheme"):
                set_scales(module)
                module.quantization_status = QuantizationStatus.FROZEN
        compressor = ModelCompressor.from_pretrained_model(model, quantization_format=layout)
        compressor.compress_model(model)
        model.save_pretrained(folder)
        compressor.update_config(folder)
        for name in os.listdir(source):
            if "tokenizer" in name:
                shutil.copy(os.path.join(source, name), folder)
        with open(os.path.join(folder, "config.json")) as file:
            assert json.load(file)["quantization_config"]["format"] == layout


if __name__ == "__main__":
    main()
