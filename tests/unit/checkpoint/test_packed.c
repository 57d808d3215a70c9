/* SPDX-License-Identifier: Apache-2.0 */
/* Packed checkpoints: unpacking gives the same bytes, readers see the same tensors, and damaged files are refused. */
#include "support.h"

#include "base/file.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/pack_checkpoint.h"
#include "checkpoint/writer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static fp_context *ctx;
static char *folder;
static char in[4200], packed[4200], out[4200], command[20000];

static void shell(const char *text)
{
	if (system(text) != 0)
		fail_msg("%s", text);
}

static int set_up(void **state)
{
	folder_set_up(state);
	ctx = ((folder_fixture *)*state)->ctx;
	folder = ((folder_fixture *)*state)->folder;
	snprintf(in, sizeof in, "%s/in", folder);
	snprintf(packed, sizeof packed, "%s/packed", folder);
	snprintf(out, sizeof out, "%s/out", folder);
	mkdir(in, 0777);
	return 0;
}

static void write_text(const char *name, const char *text)
{
	write_file(in, name, text, strlen(text));
}

/* Entries of `size` bytes, about one in `sparse` not zero; pairs: at most two of four. */
static void fill(char *bytes, int64_t rows, int64_t cols, int64_t size, int sparse, bool pairs, uint64_t *seed)
{
	memset(bytes, 0, (size_t)(rows * cols * size));
	for (int64_t i = 0; i < rows * cols; i++) {
		uint32_t bits = 0x80000001U | (uint32_t)(random_uniform(seed) * 1e6F);
		bool kept =
			pairs ? i % 4 == (i / 4) % 3 || i % 4 == 3 : random_uniform(seed) * 0.5F + 0.5F < 1.0F / (float)sparse;
		if (kept)
			memcpy(bytes + i * size, &bits, (size_t)size);
	}
}

static void write_bits(char *bytes, int64_t index, uint16_t bits)
{
	memcpy(bytes + 2 * index, &bits, sizeof bits);
}

/* The model of most cases: its header is not in the order of its bytes, has spaces, metadata and padding. */
enum {
	MASK_ROWS = 9,
	MASK_COLS = 21,
	MASK_BYTES = 2 * MASK_ROWS * MASK_COLS,
	PAIR_ROWS = 40,
	PAIR_COLS = 16,
	PAIR_BYTES = 4 * PAIR_ROWS * PAIR_COLS,
	DENSE_BYTES = 2 * 4 * 8,
	DATA_BYTES = MASK_BYTES + PAIR_BYTES + DENSE_BYTES + 3
};

static void write_model(void)
{
	char data[DATA_BYTES], header[2048];
	uint64_t seed = 5;
	fill(data, MASK_ROWS, MASK_COLS, 2, 4, false, &seed);
	write_bits(data, 0, 0x8000);                         /* −0.0 */
	write_bits(data, 5, 0x7E01);                         /* a NaN with a payload */
	memset(data + 2 * MASK_COLS * 3, 0, 2 * MASK_COLS);  /* an empty row */
	write_bits(data, MASK_ROWS * MASK_COLS - 1, 0x3C00); /* the last entry */
	fill(data + MASK_BYTES, PAIR_ROWS, PAIR_COLS, 4, 0, true, &seed);
	memset(data + MASK_BYTES, 0, 16);      /* a group without entries */
	memset(data + MASK_BYTES + 16, 0, 12); /* and one with its last only */
	fill(data + MASK_BYTES + PAIR_BYTES, 4, 8, 2, 1, false, &seed);
	memcpy(data + DATA_BYTES - 3, "abc", 3);
	snprintf(header, sizeof header,
			 "{ \"odd\": {\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[%d,%d]},\n"
			 "\"__metadata__\":{\"format\":\"pt\",\"note\":\"\\u00e9 \\\"x\\\"\"},"
			 "\"b.weight\":{\"shape\":[%d,%d],\"dtype\":\"F32\",\"data_offsets\":[%d,%d]},"
			 "\"c.weight\":{\"dtype\":\"BF16\",\"shape\":[4,8],\"data_offsets\":[%d,%d]},"
			 "\"a.weight\" :{\"dtype\":\"F16\",\"shape\":[%d,%d],\"data_offsets\":[0,%d]}}   ",
			 DATA_BYTES - 3, DATA_BYTES, PAIR_ROWS, PAIR_COLS, MASK_BYTES, MASK_BYTES + PAIR_BYTES,
			 MASK_BYTES + PAIR_BYTES, DATA_BYTES - 3, MASK_ROWS, MASK_COLS, MASK_BYTES);
	write_text("config.json", "\n{\n \"model_type\": \"opt\", \"x\": 1e-05}\n");
	write_text("tokenizer.json", "{}");
	write_safetensors(in, "model.safetensors", header, data, sizeof data);
}

static void assert_same_folders(void)
{
	snprintf(command, sizeof command, "diff -r '%s' '%s'", in, out);
	shell(command);
}

static void round_trip(fp_pack_result *result)
{
	fp_pack_result back;
	snprintf(command, sizeof command, "rm -rf '%s' '%s'", packed, out);
	shell(command);
	assert_ok(ctx, fp_pack_checkpoint(result, ctx, in, packed));
	assert_ok(ctx, fp_unpack_checkpoint(&back, ctx, packed, out));
	assert_memory_equal(result, &back, sizeof back);
	assert_same_folders();
}

/* Readers see the same tensors in both directories. */
static void assert_same_tensors(void)
{
	fp_checkpoint *plain, *coded;
	assert_ok(ctx, fp_checkpoint_open(&plain, ctx, in));
	assert_ok(ctx, fp_checkpoint_open(&coded, ctx, packed));
	assert_non_null(strstr(fp_checkpoint_coding(coded), "packed: "));
	assert_true(json_equal(fp_checkpoint_config(plain), fp_checkpoint_config(coded)));
	assert_int_equal(fp_checkpoint_tensor_count(plain), fp_checkpoint_tensor_count(coded));
	for (int64_t i = 0; i < fp_checkpoint_tensor_count(plain); i++) {
		const fp_tensor_info *wanted = fp_checkpoint_tensor(plain, i), *tensor = fp_checkpoint_tensor(coded, i);
		const void *wanted_bytes, *bytes;
		void *wanted_own, *own;
		assert_string_equal(tensor->name, wanted->name);
		assert_string_equal(tensor->dtype_name, wanted->dtype_name);
		assert_int_equal(tensor->rank, wanted->rank);
		assert_memory_equal(tensor->shape, wanted->shape, sizeof wanted->shape);
		assert_int_equal(tensor->bytes, wanted->bytes);
		assert_ok(ctx, fp_checkpoint_read(&wanted_bytes, &wanted_own, ctx, plain, wanted));
		assert_ok(ctx, fp_checkpoint_read(&bytes, &own, ctx, coded, tensor));
		if (tensor->bytes > 0)
			assert_memory_equal(bytes, wanted_bytes, (size_t)wanted->bytes);
		if (tensor->coding && tensor->coding->kind != FP_CODED_FP8)
			assert_ok(ctx, fp_packed_check(ctx, tensor, fp_checkpoint_data(coded, tensor->coding->guide)));
		fp_free(wanted_own);
		fp_free(own);
		fp_checkpoint_forget(coded, tensor);
	}
	fp_checkpoint_close(plain);
	fp_checkpoint_close(coded);
}

static void both_forms_give_the_same_bytes(void **state)
{
	(void)state;
	fp_pack_result result;
	fp_checkpoint *coded;
	write_model();
	round_trip(&result);
	assert_int_equal(result.tensors, 4);
	assert_int_equal(result.by_mask, 1);
	assert_int_equal(result.as_pairs, 1);
	assert_int_equal(result.matrix_bytes, MASK_BYTES + PAIR_BYTES);
	assert_same_tensors();
	/* the parts, as docs/packed.md describes them */
	assert_ok(ctx, fp_checkpoint_open(&coded, ctx, packed));
	const fp_tensor_coding *mask = fp_checkpoint_find(coded, "a.weight")->coding;
	assert_string_equal(mask->values->name, "a.weight.values");
	assert_string_equal(mask->guide->name, "a.weight.mask");
	assert_int_equal(mask->guide->shape[0], MASK_ROWS);
	assert_int_equal(mask->guide->shape[1], (MASK_COLS + 7) / 8);
	const unsigned char *bits = fp_checkpoint_data(coded, mask->guide);
	assert_int_equal(bits[0] & 0x21, 0x21); /* −0.0 and the NaN are stored */
	assert_int_equal(bits[3 * 3] | bits[3 * 3 + 1] | bits[3 * 3 + 2], 0);
	const fp_tensor_coding *pairs = fp_checkpoint_find(coded, "b.weight")->coding;
	assert_string_equal(pairs->guide->name, "b.weight.positions");
	assert_int_equal(pairs->values->shape[1], PAIR_COLS / 2);
	assert_int_equal(pairs->guide->shape[1], PAIR_COLS / 8);
	const unsigned char *positions = fp_checkpoint_data(coded, pairs->guide);
	assert_int_equal(positions[0], 0x4 | 0xC << 4); /* an empty group: 0, 1; one with its last entry only: 0, 3 */
	assert_null(fp_checkpoint_find(coded, "c.weight")->coding);
	fp_checkpoint_close(coded);
}

static void every_type_and_shape(void **state)
{
	(void)state;
	static const char *const types[] = {"F32", "F16", "BF16"};
	static const int64_t widths[] = {1, 4, 7, 8, 9, 16};
	for (int type = 0; type < 3; type++)
		for (size_t width = 0; width < sizeof widths / sizeof widths[0]; width++)
			for (int pairs = 0; pairs < 2; pairs++) {
				char data[4 * 5 * 20], header[256];
				int64_t size = type == 0 ? 4 : 2, cols = widths[width];
				uint64_t seed = (uint64_t)(100 * type + cols);
				fp_pack_result result;
				fill(data, 5, cols, size, 3, pairs, &seed);
				snprintf(header, sizeof header,
						 "{\"x.weight\":{\"dtype\":\"%s\",\"shape\":[5,%d],\"data_offsets\":[0,%d]}}", types[type],
						 (int)cols, (int)(5 * cols * size));
				write_text("config.json", "{}");
				write_safetensors(in, "model.safetensors", header, data, (size_t)(5 * cols * size));
				round_trip(&result);
				assert_same_tensors();
				if (pairs && cols % 8 == 0)
					assert_int_equal(result.as_pairs, 1);
			}
}

/* What must not be packed: other names, other shapes, names that are taken, matrices that would not get smaller. */
static void other_tensors_stay(void **state)
{
	(void)state;
	static const char data[512] = {0};
	fp_pack_result result;
	write_text("config.json", "{ }");
	write_safetensors(in, "model.safetensors",
					  "{\"a\":{\"dtype\":\"F32\",\"shape\":[4,4],\"data_offsets\":[0,64]},"
					  "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[64,128]},"
					  "\"c.weight\":{\"dtype\":\"F32\",\"shape\":[2,2,4],\"data_offsets\":[128,192]},"
					  "\"d.weight\":{\"dtype\":\"I32\",\"shape\":[4,4],\"data_offsets\":[192,256]},"
					  "\"e.weight\":{\"dtype\":\"F32\",\"shape\":[4,4],\"data_offsets\":[256,320]},"
					  "\"e.weight.mask\":{\"dtype\":\"F32\",\"shape\":[16],\"data_offsets\":[320,384]},"
					  "\"f.weight\":{\"dtype\":\"F32\",\"shape\":[1000,0],\"data_offsets\":[384,384]},"
					  "\"g.weight\":{\"dtype\":\"F32\",\"shape\":[8,4],\"data_offsets\":[384,512]}}",
					  data, sizeof data);
	round_trip(&result);
	assert_int_equal(result.by_mask, 1); /* g */
	assert_int_equal(result.as_pairs, 0);
	assert_same_tensors();
}

static void every_fixture(void **state)
{
	(void)state;
	static const char *const models[] = {"llama-plain", "llama-sharded",    "llama-tied", "opt-plain",
										 "phi3-plain",  "qwen3-fp8-ragged", "qwen3-fp8",  "gpt2-plain"};
	for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
		fp_pack_result result;
		snprintf(command, sizeof command, "rm -rf '%s' && cp -r '%s/%s' '%s' && rm -f '%s'/*.bin", in,
				 source_path("tests/fixtures/model"), models[i], in, in);
		shell(command);
		round_trip(&result);
		assert_int_equal(result.by_mask + result.as_pairs, 0); /* dense */
		if (!strstr(models[i], "fp8"))
			assert_same_tensors();
	}
}

/* A sharded checkpoint with sparse matrices in both shards. */
static void shards_keep_their_index(void **state)
{
	(void)state;
	char data[4 * 64];
	uint64_t seed = 3;
	fp_pack_result result;
	fp_checkpoint *coded;
	write_text("config.json", "{\"a\":1}");
	write_text("model.safetensors.index.json", "{\"metadata\": {\"total_size\": 512},   \"weight_map\": {"
											   "\"a.weight\": \"model-00001-of-00002.safetensors\",\n"
											   "\"b.weight\": \"model-00002-of-00002.safetensors\"}}\n");
	fill(data, 8, 8, 4, 5, false, &seed);
	write_safetensors(in, "model-00001-of-00002.safetensors",
					  "{\"a.weight\":{\"dtype\":\"F32\",\"shape\":[8,8],\"data_offsets\":[0,256]}}", data, sizeof data);
	write_safetensors(in, "model-00002-of-00002.safetensors",
					  "{\"b.weight\":{\"dtype\":\"F32\",\"shape\":[4,16],\"data_offsets\":[0,256]}}", data,
					  sizeof data);
	round_trip(&result);
	assert_int_equal(result.by_mask, 2);
	assert_same_tensors();
	assert_ok(ctx, fp_checkpoint_open(&coded, ctx, packed));
	assert_string_equal(coded->index_name, "model.packed.safetensors.index.json");
	assert_int_equal(fp_checkpoint_find(coded, "b.weight")->shard, 1);
	fp_checkpoint_close(coded);
}

/* The writer gives what it would give for the checkpoint that was packed. */
static void the_writer_unpacks(void **state)
{
	(void)state;
	fp_checkpoint *coded, *plain;
	fp_writer *writer;
	fp_pack_result result;
	char bytes[DENSE_BYTES], other[4200];
	memset(bytes, 0x3C, sizeof bytes);
	snprintf(other, sizeof other, "%s/other", folder);
	write_model();
	assert_ok(ctx, fp_pack_checkpoint(&result, ctx, in, packed));
	assert_ok(ctx, fp_checkpoint_open(&plain, ctx, in));
	assert_ok(ctx, fp_checkpoint_open(&coded, ctx, packed));
	for (int i = 0; i < 2; i++) {
		const fp_checkpoint *source = i == 0 ? plain : coded;
		assert_ok(ctx, fp_writer_open(&writer, ctx, source, i == 0 ? out : other, NULL));
		assert_ok(ctx, fp_writer_replace(writer, ctx, fp_checkpoint_find(source, "c.weight"), bytes));
		assert_ok(ctx, fp_writer_commit(writer));
		fp_writer_close(writer);
	}
	snprintf(command, sizeof command, "diff -r '%s' '%s'", out, other);
	shell(command);
	fp_checkpoint_close(plain);
	fp_checkpoint_close(coded);
}

static void requests_that_make_no_sense(void **state)
{
	(void)state;
	fp_pack_result result;
	write_model();
	assert_fails(ctx, FP_ERROR_USAGE, "is not packed", fp_unpack_checkpoint(&result, ctx, in, out));
	assert_fails(ctx, FP_ERROR_USAGE, "is the input", fp_pack_checkpoint(&result, ctx, in, in));
	assert_ok(ctx, fp_pack_checkpoint(&result, ctx, in, packed));
	assert_fails(ctx, FP_ERROR_USAGE, "is packed already", fp_pack_checkpoint(&result, ctx, packed, out));
	assert_fails(ctx, FP_ERROR_USAGE, "exists already", fp_pack_checkpoint(&result, ctx, in, packed));
	assert_fails(ctx, FP_ERROR_USAGE, "only safetensors",
				 fp_pack_checkpoint(&result, ctx, source_path("tests/fixtures/model/opt-bin"), out));
	write_text("config.json", "{\"fistapruner_packed\":1}");
	assert_fails(ctx, FP_ERROR_INPUT, "has the key 'fistapruner_packed' already",
				 fp_pack_checkpoint(&result, ctx, in, out));
	assert_int_not_equal(access(out, F_OK), 0);
	/* an edited config: the text around the mark stays as it is, but the mark must be there */
	write_model();
	snprintf(command, sizeof command, "sed -i 's/opt/gpt2/' '%s/config.json' '%s/config.json'", in, packed);
	shell(command);
	assert_ok(ctx, fp_unpack_checkpoint(&result, ctx, packed, out));
	assert_same_folders();
	snprintf(command, sizeof command, "rm -r '%s' && cp '%s/config.json' '%s/config.json'", out, in, packed);
	shell(command);
	assert_fails(ctx, FP_ERROR_INPUT, "cannot be restored", fp_unpack_checkpoint(&result, ctx, packed, out));
	assert_int_not_equal(access(out, F_OK), 0);
}

/* Replaces the first occurrence of a text by another one of the same length in the packed file, or flips a bit of the
 * byte `offset` behind the header if `from` is NULL; unpacking must then fail. */
static void damage(const char *from, const char *to, int64_t offset, const char *message)
{
	char path[9000], *text;
	int64_t size;
	fp_pack_result result;
	snprintf(path, sizeof path, "%s/model.packed.safetensors", packed);
	assert_ok(ctx, fp_read_file(&text, &size, ctx, path, 1 << 20));
	char *kept = malloc((size_t)size);
	memcpy(kept, text, (size_t)size);
	if (from) {
		char *at = memmem(text, (size_t)size, from, strlen(from));
		assert_non_null(at);
		assert_int_equal(strlen(from), strlen(to));
		memcpy(at, to, strlen(to));
	} else {
		int64_t start = 8 + (unsigned char)text[0] + 256 * (unsigned char)text[1];
		text[start + offset] ^= 1;
	}
	write_file(packed, "model.packed.safetensors", text, (size_t)size);
	assert_fails(ctx, FP_ERROR_INPUT, message, fp_unpack_checkpoint(&result, ctx, packed, out));
	assert_int_not_equal(access(out, F_OK), 0);
	write_file(packed, "model.packed.safetensors", kept, (size_t)size);
	free(kept);
	fp_free(text);
}

static void damaged_files_are_refused(void **state)
{
	(void)state;
	fp_pack_result result;
	fp_checkpoint *coded;
	write_model();
	assert_ok(ctx, fp_pack_checkpoint(&result, ctx, in, packed));
	assert_ok(ctx, fp_checkpoint_open(&coded, ctx, packed));
	int64_t start = 8 + coded->files[0].bytes[0] + 256 * (int64_t)coded->files[0].bytes[1];
	const fp_tensor_coding *mask = fp_checkpoint_find(coded, "a.weight")->coding;
	const fp_tensor_coding *pairs = fp_checkpoint_find(coded, "b.weight")->coding;
	int64_t mask_at = mask->guide->offset - start, pairs_at = pairs->guide->offset - start;
	int64_t values_at = mask->values->offset - start, plain_at = fp_checkpoint_find(coded, "odd")->offset - start;
	fp_checkpoint_close(coded);
	damage(NULL, NULL, mask_at, "'a.weight.mask' is damaged: it does not have as many bits as there are values");
	damage(NULL, NULL, pairs_at, "'b.weight.positions' is damaged: positions in a group of four do not increase");
	damage(NULL, NULL, values_at, "it is damaged");
	damage(NULL, NULL, plain_at, "it is damaged");
	damage("\\\"version\\\":1", "\\\"version\\\":2", 0, "was packed by format 2");
	damage("\"fistapruner_packed\"", "\"fistapruner_packer\"", 0, "so that it is not packed");
	damage("\\\"digest\\\":", "\\\"digets\\\":", 0, "needs header, tensors and digest");
	damage("\\\"a.weight\\\":\\\"mask\\\"", "\\\"a.weight\\\":\\\"task\\\"", 0, "in the form 'task'");
	damage("\\\"a.weight\\\":\\\"mask\\\"", "\\\"x.weight\\\":\\\"mask\\\"", 0, "'a.weight' of the original file is");
	damage("\"a.weight.mask\"", "\"a.weight.mesk\"", 0, "'a.weight.mask' is missing");
	damage("\"b.weight.values\"", "\"b.weight.valves\"", 0, "'b.weight.values' is missing");
	damage("\"odd\"", "\"odf\"", 0, "tensor 'odd' of the original file is missing");
	damage("\\\\\\\"shape\\\\\\\":[3]", "\\\\\\\"shape\\\\\\\":[4]", 0, "data_offsets give 3 bytes");
	damage("\\\\\\\"b.weight\\\\\\\":{\\\\\\\"shape\\\\\\\":[40,16]",
		   "\\\\\\\"b.weight\\\\\\\":{\\\\\\\"shape\\\\\\\":[64,10]", 0, "'2:4'");
	damage("\\\\\\\"note\\\\\\\"", "\\\\\\\"nota\\\\\\\"", 0, "it is damaged"); /* only the digest knows */
	assert_ok(ctx, fp_unpack_checkpoint(&result, ctx, packed, out));
	assert_same_folders();

	/* a bit behind the last entry of a row */
	char *bytes;
	int64_t size;
	char path[9000];
	snprintf(path, sizeof path, "%s/model.packed.safetensors", packed);
	assert_ok(ctx, fp_read_file(&bytes, &size, ctx, path, 1 << 20));
	bytes[start + mask_at + 2] = (char)0x80;
	write_file(packed, "model.packed.safetensors", bytes, (size_t)size);
	snprintf(command, sizeof command, "rm -r '%s'", out);
	shell(command);
	assert_fails(ctx, FP_ERROR_INPUT, "bits after the last entry", fp_unpack_checkpoint(&result, ctx, packed, out));
	/* every shorter file */
	for (int64_t length = 0; length < size; length += 37) {
		write_file(packed, "model.packed.safetensors", bytes, (size_t)length);
		assert_int_equal(fp_unpack_checkpoint(&result, ctx, packed, out), FP_ERROR_INPUT);
	}
	fp_free(bytes);
}

/* Out of memory at every allocation: an error, and nothing stays behind. */
static void failed_allocations(void **state)
{
	(void)state;
	fp_pack_result result;
	write_model();
	for (int64_t at = 1;; at++) {
		ctx->fail_allocation_at = ctx->allocations + at;
		fp_status status = fp_pack_checkpoint(&result, ctx, in, packed);
		ctx->fail_allocation_at = 0;
		if (status == FP_OK)
			break;
		assert_int_equal(status, FP_ERROR_MEMORY);
		assert_int_not_equal(access(packed, F_OK), 0);
	}
	for (int64_t at = 1;; at++) {
		ctx->fail_allocation_at = ctx->allocations + at;
		fp_status status = fp_unpack_checkpoint(&result, ctx, packed, out);
		ctx->fail_allocation_at = 0;
		if (status == FP_OK)
			break;
		assert_int_equal(status, FP_ERROR_MEMORY);
		assert_int_not_equal(access(out, F_OK), 0);
	}
	assert_same_folders();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(both_forms_give_the_same_bytes, set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(every_type_and_shape, set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(other_tensors_stay, set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(every_fixture, set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(shards_keep_their_index, set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(the_writer_unpacks, set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(requests_that_make_no_sense, set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(damaged_files_are_refused, set_up, folder_tear_down),
		cmocka_unit_test_setup_teardown(failed_allocations, set_up, folder_tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
