/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/weight_formats.h"

#include "checkpoint/safetensors.h"
#include "checkpoint/torch_bin.h"

static const fp_weight_format formats[] = {
	{
		.name = "safetensors",
		.file = "model.safetensors",
		.index = "model.safetensors.index.json",
		.ending = ".safetensors",
		.prefix = "",
		.is_output = true,
		.read = fp_safetensors_read,
	},
	{
		.name = "packed safetensors",
		.file = "model.packed.safetensors",
		.index = "model.packed.safetensors.index.json",
		.ending = ".safetensors",
		.prefix = "",
		.is_output = true,
		.is_packed = true,
		.read = fp_safetensors_read,
	},
	{
		.name = "PyTorch archive",
		.file = "pytorch_model.bin",
		.index = "pytorch_model.bin.index.json",
		.ending = ".bin",
		.prefix = "pytorch_",
		.read = fp_torch_bin_read,
	},
};

const fp_weight_format *fp_weight_format_at(int index)
{
	return index < (int)(sizeof formats / sizeof formats[0]) ? &formats[index] : NULL;
}
