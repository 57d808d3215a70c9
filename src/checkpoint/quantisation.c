/* SPDX-License-Identifier: Apache-2.0 */
#include "checkpoint/quantisation.h"

#include <string.h>

enum { MOST_BLOCK = 1 << 24 };

static const char *text_or(const json_t *object, const char *key, const char *fallback)
{
	const char *text = json_string_value(json_object_get(object, key));
	return text ? text : fallback;
}

static bool is_absent(const json_t *value)
{
	return !value || json_is_null(value);
}

/* block ← [rows, columns] of the key; 0, 0 if it is absent. */
static fp_status read_block(int64_t block[2], fp_context *ctx, const json_t *object, const char *key, const char *path)
{
	const json_t *sizes = json_object_get(object, key);
	block[0] = block[1] = 0;
	if (is_absent(sizes))
		return FP_OK;
	bool good = json_is_array(sizes) && json_array_size(sizes) == 2;
	for (size_t i = 0; good && i < 2; i++) {
		block[i] = json_integer_value(json_array_get(sizes, i));
		good = block[i] >= 1 && block[i] <= MOST_BLOCK;
	}
	if (!good)
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "%s: 'quantization_config.%s' must be two whole numbers above 0, such as [128, 128]", path, key);
	return FP_OK;
}

/* The form of DeepSeek's and Qwen's releases: "fmt" is e4m3 where it is given. */
static fp_status read_fp8(fp_quantisation *out, fp_context *ctx, const json_t *object, const char *path)
{
	const char *format = text_or(object, "fmt", "e4m3");
	if (strcmp(format, "e4m3") != 0 && strcmp(format, "e5m2") != 0)
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: 'quantization_config.fmt' is '%.100s'; e4m3 and e5m2 are supported",
					   path, format);
	out->kind = FP_QUANTISED_FP8;
	return read_block(out->block, ctx, object, "weight_block_size", path);
}

/* Whether a group of compressed-tensors has weights of 8 bits, floating, without zero points. */
static bool is_fp8_group(const json_t *weights)
{
	return json_is_object(weights) && strcmp(text_or(weights, "type", ""), "float") == 0 &&
		   json_integer_value(json_object_get(weights, "num_bits")) == 8 &&
		   !json_is_false(json_object_get(weights, "symmetric"));
}

static bool is_plain(const json_t *object)
{
	const json_t *sparsity = json_object_get(object, "sparsity_config");
	return is_absent(sparsity) || strcmp(text_or(sparsity, "format", "dense"), "dense") == 0;
}

/* The bits of the integers that are read, of a group of compressed-tensors; 0: it is another one. */
static int integer_bits(const json_t *weights)
{
	json_int_t bits = json_integer_value(json_object_get(weights, "num_bits"));
	const char *strategy = text_or(weights, "strategy", "");
	bool known = strcmp(strategy, "group") == 0 || strcmp(strategy, "channel") == 0 || strcmp(strategy, "tensor") == 0;
	return strcmp(text_or(weights, "type", "int"), "int") == 0 && known && (bits == 4 || bits == 8) ? (int)bits : 0;
}

static bool is_known_format(const char *format)
{
	static const char *const known[] = {"float-quantized", "naive-quantized", "int-quantized", "pack-quantized",
										"mixed-precision"};
	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
		if (strcmp(format, known[i]) == 0)
			return true;
	return false;
}

/* Adds a group of FP8 weights, whose blocks must be those of the groups before. */
static fp_status add_fp8_group(fp_quantisation *out, fp_context *ctx, const json_t *weights, const char *path)
{
	int64_t block[2];
	fp_status status = read_block(block, ctx, weights, "block_structure", path);
	if (status != FP_OK)
		return status;
	if (out->block[0] > 0 && block[0] > 0 && (out->block[0] != block[0] || out->block[1] != block[1]))
		return fp_fail(ctx, FP_ERROR_INPUT,
					   "%s: 'quantization_config.config_groups' have different block structures; one is supported",
					   path);
	if (block[0] > 0)
		memcpy(out->block, block, sizeof block);
	return FP_OK;
}

static fp_status read_compressed_tensors(fp_quantisation *out, fp_context *ctx, const json_t *object, const char *path)
{
	const char *name;
	const json_t *group;
	const json_t *groups = json_object_get(object, "config_groups");
	size_t floats = 0, integers = 0;
	out->format = text_or(object, "format", "");
	if (!is_plain(object))
		return FP_OK;
	if (strcmp(out->format, "dense") == 0) {
		out->kind = FP_NOT_QUANTISED;
		return FP_OK;
	}
	if (!is_known_format(out->format) || !json_is_object(groups) || json_object_size(groups) == 0)
		return FP_OK;
	json_object_foreach((json_t *)(uintptr_t)groups, name, group)
	{
		const json_t *weights = json_object_get(group, "weights");
		int bits = integer_bits(weights);
		fp_status status = FP_OK;
		if (is_fp8_group(weights)) {
			status = add_fp8_group(out, ctx, weights, path);
			floats++;
		} else if (bits > 0) {
			out->widths |= 1U << bits;
			integers++;
		}
		if (status != FP_OK)
			return status;
	}
	out->scales_by_rows = true;
	if (floats == json_object_size(groups))
		out->kind = FP_QUANTISED_FP8;
	else if (integers == json_object_size(groups))
		out->kind = FP_QUANTISED_INTEGERS;
	return FP_OK;
}

fp_status fp_quantisation_read(fp_quantisation *out, fp_context *ctx, const json_t *config, const char *path)
{
	const json_t *object = json_object_get(config, "quantization_config");
	*out = (fp_quantisation){.kind = FP_NOT_QUANTISED, .method = "", .format = ""};
	if (is_absent(object))
		return FP_OK;
	if (!json_is_object(object))
		return fp_fail(ctx, FP_ERROR_INPUT, "%s: 'quantization_config' must be an object", path);
	out->kind = FP_QUANTISED_OTHER;
	out->method = text_or(object, "quant_method", "");
	if (strcmp(out->method, "fp8") == 0)
		return read_fp8(out, ctx, object, path);
	const char *dtype = text_or(config, "dtype", text_or(config, "torch_dtype", ""));
	out->wide = strcmp(dtype, "float32") == 0;
	if (strcmp(out->method, "compressed-tensors") == 0)
		return read_compressed_tensors(out, ctx, object, path);
	return FP_OK;
}

fp_status fp_quantisation_refuse(const fp_quantisation *quantisation, fp_context *ctx, const char *path)
{
	return fp_fail(ctx, FP_ERROR_INPUT,
				   "%s: the weights are quantised by '%.100s'%s%.100s, which is not supported; supported are fp8, and "
				   "compressed-tensors with 8-bit floats, or 4-bit or 8-bit integers",
				   path, quantisation->method[0] ? quantisation->method : "an unnamed method",
				   quantisation->format[0] ? " with format " : "", quantisation->format);
}
