/* SPDX-License-Identifier: Apache-2.0 */
/* The writer with a tensor that the source lacks: a head of a model whose embeddings were tied. */
#include "model_fixture.h"

#include "base/file.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/writer.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char head_name[] = "lm_head.weight";
enum { HEAD_ROWS = 6, HEAD_COLUMNS = 5, HEAD_BYTES = HEAD_ROWS * HEAD_COLUMNS * 2 };

typedef struct output_run {
	fp_context *ctx;
	fp_checkpoint *source;
	char out[4200];
	fp_tensor_info head;
	unsigned char bytes[HEAD_BYTES];
} output_run;

static void open_run(output_run *run, void **state, const char *fixture)
{
	folder_fixture *place = *state;
	char path[600];
	*run = (output_run){.ctx = place->ctx};
	snprintf(path, sizeof path, "tests/fixtures/%s", fixture);
	snprintf(run->out, sizeof run->out, "%s/out", place->folder);
	assert_ok(run->ctx, fp_checkpoint_open(&run->source, run->ctx, source_path(path)));
	run->head = (fp_tensor_info){.name = head_name,
								 .dtype = FP_F16,
								 .dtype_name = "F16",
								 .rank = 2,
								 .shape = {HEAD_ROWS, HEAD_COLUMNS},
								 .elements = HEAD_ROWS * HEAD_COLUMNS,
								 .bytes = HEAD_BYTES,
								 .shard = 12345,   /* the writer decides */
								 .offset = 67890}; /* the same */
	for (int i = 0; i < HEAD_BYTES; i++)
		run->bytes[i] = (unsigned char)(37 * i + 1);
}

static void write_output(output_run *run, const fp_tensor_info *head, const void *bytes)
{
	fp_writer *writer;
	unsigned char *again = malloc((size_t)head->bytes);
	assert_ok(run->ctx, fp_writer_open(&writer, run->ctx, run->source, run->out, &(fp_output_change){.added = head}));
	assert_ok(run->ctx, fp_writer_replace(writer, run->ctx, head, bytes));
	assert_ok(run->ctx, fp_writer_read(writer, run->ctx, head, again));
	assert_memory_equal(again, bytes, (size_t)head->bytes);
	assert_ok(run->ctx, fp_writer_commit(writer));
	fp_writer_close(writer);
	free(again);
}

/* The output has the source's tensors with their bytes, and the head with its own. */
static void check_output(output_run *run, const fp_tensor_info *head, const void *bytes, int64_t new_tensors)
{
	fp_checkpoint *copy;
	assert_ok(run->ctx, fp_checkpoint_open(&copy, run->ctx, run->out));
	assert_int_equal(fp_checkpoint_tensor_count(copy), fp_checkpoint_tensor_count(run->source) + new_tensors);
	for (int64_t i = 0; i < fp_checkpoint_tensor_count(copy); i++) {
		const fp_tensor_info *tensor = fp_checkpoint_tensor(copy, i);
		bool is_head = strcmp(tensor->name, head_name) == 0;
		const fp_tensor_info *wanted = is_head ? head : fp_checkpoint_find(run->source, tensor->name);
		assert_non_null(wanted);
		assert_string_equal(tensor->dtype_name, wanted->dtype_name);
		assert_int_equal(tensor->rank, wanted->rank);
		assert_memory_equal(tensor->shape, wanted->shape, sizeof tensor->shape);
		assert_int_equal(tensor->bytes, wanted->bytes);
		if (tensor->bytes > 0)
			assert_memory_equal(fp_checkpoint_data(copy, tensor),
								is_head ? bytes : fp_checkpoint_data(run->source, wanted), (size_t)tensor->bytes);
	}
	assert_non_null(fp_checkpoint_find(copy, head_name));
	fp_checkpoint_close(copy);
}

/* weight_map names the file of every tensor, and total_size is the sum of their bytes. */
static void check_index(output_run *run)
{
	char path[4400];
	fp_checkpoint *copy;
	int64_t total = 0;
	snprintf(path, sizeof path, "%s/model.safetensors.index.json", run->out);
	json_t *index = json_load_file(path, 0, NULL);
	assert_non_null(index);
	const json_t *map = json_object_get(index, "weight_map");
	assert_ok(run->ctx, fp_checkpoint_open(&copy, run->ctx, run->out));
	assert_int_equal(json_object_size(map), fp_checkpoint_tensor_count(copy));
	for (int64_t i = 0; i < fp_checkpoint_tensor_count(copy); i++) {
		const fp_tensor_info *tensor = fp_checkpoint_tensor(copy, i);
		const char *file = json_string_value(json_object_get(map, tensor->name));
		assert_non_null(file);
		assert_string_equal(file, copy->shards[tensor->shard]);
		total += tensor->bytes;
	}
	assert_int_equal(json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")), total);
	assert_string_equal(json_string_value(json_object_get(map, head_name)), copy->shards[copy->shard_count - 1]);
	fp_checkpoint_close(copy);
	json_decref(index);
}

static void one_file_gets_the_tensor(void **state)
{
	static const char *const fixtures[] = {"checkpoint/safetensors-single", "checkpoint/bin-single"};
	for (int i = 0; i < 2; i++) {
		output_run run;
		char path[4400];
		open_run(&run, state, fixtures[i]);
		write_output(&run, &run.head, run.bytes);
		check_output(&run, &run.head, run.bytes, 1);
		snprintf(path, sizeof path, "%s/model.safetensors.index.json", run.out);
		assert_int_not_equal(access(path, F_OK), 0);
		remove_folder(run.out);
		fp_checkpoint_close(run.source);
	}
}

static void shards_get_the_tensor_and_a_new_index(void **state)
{
	static const char *const fixtures[] = {"checkpoint/safetensors-sharded", "checkpoint/bin-sharded"};
	for (int i = 0; i < 2; i++) {
		output_run run;
		open_run(&run, state, fixtures[i]);
		write_output(&run, &run.head, run.bytes);
		check_output(&run, &run.head, run.bytes, 1);
		check_index(&run);
		remove_folder(run.out);
		fp_checkpoint_close(run.source);
	}
}

/* In an archive the head is a second name of the embedding; the output gives it bytes of its own. */
static void an_aliased_head_gets_its_own_bytes(void **state)
{
	output_run run;
	open_run(&run, state, "checkpoint/bin-tied");
	const fp_tensor_info *embedding = fp_checkpoint_find(run.source, "model.decoder.embed_tokens.weight");
	const fp_tensor_info *alias = fp_checkpoint_find(run.source, head_name);
	assert_non_null(alias);
	assert_int_equal(alias->offset, embedding->offset);
	fp_tensor_info head = *embedding;
	head.name = head_name;
	unsigned char *bytes = malloc((size_t)head.bytes);
	for (int64_t i = 0; i < head.bytes; i++)
		bytes[i] = (unsigned char)(11 * i + 3);
	write_output(&run, &head, bytes);
	check_output(&run, &head, bytes, 0);
	free(bytes);
	fp_checkpoint_close(run.source);
}

/* The head that a tied checkpoint has all the same must be like the embedding. */
static void a_head_of_another_kind_is_refused(void **state)
{
	output_run run;
	fp_writer *writer;
	open_run(&run, state, "checkpoint/bin-tied");
	fp_tensor_info head = *fp_checkpoint_find(run.source, "model.decoder.embed_tokens.weight");
	head.name = head_name;
	for (int i = 0; i < 3; i++) {
		fp_tensor_info other = head;
		other.dtype = i == 0 ? FP_F32 : head.dtype;
		other.rank -= i == 1;
		other.shape[0] += i == 2;
		assert_fails(run.ctx, FP_ERROR_INPUT, "'lm_head.weight' does not have the type and shape",
					 fp_writer_open(&writer, run.ctx, run.source, run.out, &(fp_output_change){.added = &other}));
		assert_null(writer);
	}
	fp_checkpoint_close(run.source);
}

static void a_tensor_without_bytes_is_an_error(void **state)
{
	static const char *const fixtures[] = {"checkpoint/safetensors-single", "checkpoint/bin-sharded"};
	for (int i = 0; i < 2; i++) {
		output_run run;
		fp_writer *writer;
		open_run(&run, state, fixtures[i]);
		assert_ok(run.ctx,
				  fp_writer_open(&writer, run.ctx, run.source, run.out, &(fp_output_change){.added = &run.head}));
		assert_fails(run.ctx, FP_ERROR_INTERNAL, "'lm_head.weight' was added and has no bytes",
					 fp_writer_commit(writer));
		fp_writer_close(writer);
		assert_int_not_equal(access(run.out, F_OK), 0);
		fp_checkpoint_close(run.source);
	}
}

static void another_size_is_refused(void **state)
{
	output_run run;
	fp_writer *writer;
	open_run(&run, state, "checkpoint/safetensors-single");
	fp_tensor_info other = run.head;
	assert_ok(run.ctx, fp_writer_open(&writer, run.ctx, run.source, run.out, &(fp_output_change){.added = &run.head}));
	other.bytes += 2;
	assert_fails(run.ctx, FP_ERROR_INTERNAL, "'lm_head.weight' is not one of",
				 fp_writer_replace(writer, run.ctx, &other, run.bytes));
	other = run.head;
	other.dtype = FP_BF16;
	assert_fails(run.ctx, FP_ERROR_INTERNAL, "'lm_head.weight' is not one of",
				 fp_writer_replace(writer, run.ctx, &other, run.bytes));
	fp_writer_close(writer);
	fp_checkpoint_close(run.source);
}

/* A second process, and a run that is resumed, find the tensor at the same place. */
static void a_joined_writer_and_a_resumed_one_know_it(void **state)
{
	output_run run;
	fp_writer *first, *second;
	bool begun;
	unsigned char again[HEAD_BYTES];
	open_run(&run, state, "checkpoint/safetensors-sharded");
	assert_ok(run.ctx, fp_writer_open(&first, run.ctx, run.source, run.out, &(fp_output_change){.added = &run.head}));
	assert_ok(run.ctx, fp_writer_join(&second, run.ctx, run.source, run.out, &(fp_output_change){.added = &run.head}));
	assert_ok(run.ctx, fp_writer_replace(second, run.ctx, &run.head, run.bytes));
	fp_writer_close(second);
	assert_ok(run.ctx, fp_writer_read(first, run.ctx, &run.head, again));
	assert_memory_equal(again, run.bytes, HEAD_BYTES);
	fp_writer_keep(first);
	fp_writer_close(first);
	assert_ok(run.ctx,
			  fp_writer_resume(&first, run.ctx, run.source, run.out, &(fp_output_change){.added = &run.head}, &begun));
	assert_ok(run.ctx, fp_writer_replace(first, run.ctx, &run.head, run.bytes));
	assert_ok(run.ctx, fp_writer_commit(first));
	fp_writer_close(first);
	check_output(&run, &run.head, run.bytes, 1);
	fp_checkpoint_close(run.source);
}

static void no_memory_leaves_nothing(void **state)
{
	static const char *const fixtures[] = {"checkpoint/safetensors-sharded", "checkpoint/bin-sharded"};
	for (int i = 0; i < 2; i++) {
		output_run run;
		open_run(&run, state, fixtures[i]);
		for (int64_t n = 1;; n++) {
			fp_writer *writer = NULL;
			run.ctx->allocations = 0;
			run.ctx->fail_allocation_at = n;
			fp_status status =
				fp_writer_open(&writer, run.ctx, run.source, run.out, &(fp_output_change){.added = &run.head});
			if (status == FP_OK)
				status = fp_writer_replace(writer, run.ctx, &run.head, run.bytes);
			if (status == FP_OK)
				status = fp_writer_commit(writer);
			fp_writer_close(writer);
			if (status == FP_OK) {
				assert_true(n > 20);
				break;
			}
			assert_int_equal(status, FP_ERROR_MEMORY);
			assert_int_not_equal(access(run.out, F_OK), 0);
		}
		run.ctx->fail_allocation_at = 0;
		check_output(&run, &run.head, run.bytes, 1);
		remove_folder(run.out);
		fp_checkpoint_close(run.source);
	}
}

int main(void)
{
#define ADDED_TEST(test) cmocka_unit_test_setup_teardown(test, folder_set_up, folder_tear_down)
	const struct CMUnitTest tests[] = {
		ADDED_TEST(one_file_gets_the_tensor),
		ADDED_TEST(shards_get_the_tensor_and_a_new_index),
		ADDED_TEST(an_aliased_head_gets_its_own_bytes),
		ADDED_TEST(a_head_of_another_kind_is_refused),
		ADDED_TEST(a_tensor_without_bytes_is_an_error),
		ADDED_TEST(another_size_is_refused),
		ADDED_TEST(a_joined_writer_and_a_resumed_one_know_it),
		ADDED_TEST(no_memory_leaves_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
