/* SPDX-License-Identifier: Apache-2.0 */
/* Texts equal to those of transformers in float: greedy.json of tests/fixtures/generation, made by the script beside it. */
#include "generation/generate.h"
#include "model_fixture.h"

#include <jansson.h>
#include <stdlib.h>

enum { TOKENS = 64, MOST_TEXTS = 8 };

typedef struct texts {
	fp_generation all[MOST_TEXTS];
	int32_t *prompts[MOST_TEXTS], ids[MOST_TEXTS][TOKENS];
	int64_t count;
	int64_t calls, completed[MOST_TEXTS]; /* tokens and complete texts that were passed on */
} texts;

static json_t *load_greedy(void)
{
	json_error_t error;
	json_t *json = json_load_file(source_path("tests/fixtures/generation/greedy.json"), 0, &error);
	if (!json)
		fail_msg("greedy.json: line %d: %s", error.line, error.text);
	return json;
}

/* The prompts of a model in greedy.json. */
static void set_prompts(texts *t, const json_t *entries)
{
	memset(t, 0, sizeof *t);
	t->count = (int64_t)json_array_size(entries);
	assert_true(t->count > 0 && t->count <= MOST_TEXTS);
	for (int64_t i = 0; i < t->count; i++) {
		const json_t *prompt = json_object_get(json_array_get(entries, (size_t)i), "prompt_ids");
		t->prompts[i] = malloc(json_array_size(prompt) * sizeof(int32_t));
		for (size_t j = 0; j < json_array_size(prompt); j++)
			t->prompts[i][j] = (int32_t)json_integer_value(json_array_get(prompt, j));
		t->all[i] = (fp_generation){
			.prompt = t->prompts[i], .prompt_count = (int64_t)json_array_size(prompt), .ids = t->ids[i]};
	}
}

static void free_prompts(texts *t)
{
	for (int64_t i = 0; i < t->count; i++)
		free(t->prompts[i]);
}

static fp_status count_token(void *data, int64_t index, int32_t id)
{
	texts *t = data;
	assert_int_equal(t->all[index].ids[t->all[index].count - 1], id);
	t->calls++;
	return FP_OK;
}

static fp_status count_text(void *data, int64_t index)
{
	((texts *)data)->completed[index]++;
	return FP_OK;
}

static void run(model_fixture *f, texts *t, fp_generation_task *task, int64_t slots)
{
	fp_decoder *decoder;
	int64_t capacity = 0, tokens = 0;
	t->calls = 0;
	for (int64_t i = 0; i < t->count; i++) {
		int64_t own = fp_generation_capacity(f->model, t->all[i].prompt_count, task->max_tokens);
		capacity = own > capacity ? own : capacity;
		t->all[i].count = t->completed[i] = 0;
	}
	task->token = count_token;
	task->complete = count_text;
	task->data = t;
	assert_ok(f->ctx, fp_decoder_new(&decoder, f->model, slots, capacity, 0, FP_HELD_SMALLEST));
	assert_ok(f->ctx, fp_generate_texts(task, f->model, decoder, slots, t->all, t->count));
	fp_decoder_free(decoder);
	for (int64_t i = 0; i < t->count; i++) {
		tokens += t->all[i].count;
		assert_int_equal(t->completed[i], 1);
	}
	assert_int_equal(t->calls, tokens);
	assert_int_equal(task->tokens, tokens - t->count); /* the first one comes with the prompt */
}

static void expect(const texts *t, const json_t *entries, const char *name)
{
	for (int64_t i = 0; i < t->count; i++) {
		const json_t *ids = json_object_get(json_array_get(entries, (size_t)i), "ids");
		assert_int_equal(t->all[i].count, json_array_size(ids));
		for (size_t j = 0; j < json_array_size(ids); j++)
			if (t->all[i].ids[j] != json_integer_value(json_array_get(ids, j)))
				fail_msg("%s, prompt %d: token %zu is %d, expected %lld", name, (int)i, j, (int)t->all[i].ids[j],
						 (long long)json_integer_value(json_array_get(ids, j)));
	}
}

/* One after the other, all at once, and two at a time, so that the third takes the slot of one that ended. */
static void check_model(const char *name, const char *directory, const json_t *entries)
{
	model_fixture f;
	texts t;
	fp_generation_task task = {.max_tokens = TOKENS};
	assert_int_equal(open_directory(&f, directory), FP_OK);
	set_prompts(&t, entries);
	assert_ok(f.ctx, fp_stop_tokens_read(&task.stop, f.ctx, f.checkpoint));
	for (int64_t slots = 1; slots <= 3; slots++) {
		run(&f, &t, &task, slots);
		expect(&t, entries, name);
	}
	free_prompts(&t);
	close_fixture(&f);
}

static void test_own(void **state)
{
	(void)state;
	json_t *greedy = load_greedy(), *entries;
	const char *name;
	json_object_foreach(json_object_get(greedy, "own"), name, entries)
	{
		const char *fixture = strstr(name, "qwen3");
		char *copy = fixture ? copy_fixture(fixture, "max_position_embeddings", "128") : NULL;
		check_model(name, copy ? copy : source_path(name), entries);
		if (copy)
			remove_folder(copy);
		free(copy);
	}
	json_decref(greedy);
}

static void test_shared(void **state)
{
	(void)state;
	json_t *greedy = load_greedy(), *entries;
	const char *name;
	json_object_foreach(json_object_get(greedy, "shared"), name, entries)
	{
		check_model(name, need_shared_path(name), entries);
	}
	json_decref(greedy);
}

/* A stop token ends its text and is its last token; texts beside it go on. */
static void test_stops(void **state)
{
	(void)state;
	json_t *greedy = load_greedy();
	const json_t *entries = json_object_get(json_object_get(greedy, "own"), "models/llama-demo");
	model_fixture f;
	texts t, whole;
	fp_generation_task task = {.max_tokens = TOKENS};
	assert_int_equal(open_directory(&f, source_path("models/llama-demo")), FP_OK);
	set_prompts(&t, entries);
	set_prompts(&whole, entries);
	run(&f, &whole, &task, 3);
	assert_int_equal(whole.all[0].stop, FP_STOP_LIMIT);
	task.stop = (fp_stop_tokens){.ids = {whole.all[0].ids[9], 1 << 30}, .count = 2};
	run(&f, &t, &task, 3);
	for (int64_t i = 0; i < t.count; i++) {
		int64_t count = 0;
		while (count < TOKENS && whole.all[i].ids[count] != task.stop.ids[0])
			count++;
		assert_int_equal(t.all[i].count, count < TOKENS ? count + 1 : TOKENS);
		assert_int_equal(t.all[i].stop, count < TOKENS ? FP_STOP_TOKEN : FP_STOP_LIMIT);
		assert_memory_equal(t.all[i].ids, whole.all[i].ids, (size_t)t.all[i].count * sizeof(int32_t));
	}
	assert_true(t.all[0].count <= 10);
	free_prompts(&t);
	free_prompts(&whole);
	close_fixture(&f);
	json_decref(greedy);
}

/* A text ends where the model has no more positions. */
static void test_positions(void **state)
{
	(void)state;
	model_fixture f;
	texts t = {.count = 1};
	fp_generation_task task = {.max_tokens = TOKENS};
	int32_t prompt[62] = {0};
	for (int i = 0; i < 62; i++)
		prompt[i] = i % 40;
	open_fixture(&f, "qwen3-plain"); /* 64 positions */
	t.all[0] = (fp_generation){.prompt = prompt, .prompt_count = 62, .ids = t.ids[0]};
	run(&f, &t, &task, 1);
	assert_int_equal(t.all[0].count, 2);
	assert_int_equal(t.all[0].stop, FP_STOP_POSITIONS);
	close_fixture(&f);
}

/* The same seed draws the same text, whatever is beside it; another seed and another stream draw others. */
static void test_seeds(void **state)
{
	(void)state;
	json_t *greedy = load_greedy();
	const json_t *entries = json_object_get(json_object_get(greedy, "own"), "models/llama-demo");
	model_fixture f;
	texts one, two, other;
	fp_generation_task task = {.max_tokens = TOKENS, .sampling = {.temperature = 1, .top_p = 0.95}, .seed = 7};
	assert_int_equal(open_directory(&f, source_path("models/llama-demo")), FP_OK);
	set_prompts(&one, entries);
	set_prompts(&two, entries);
	set_prompts(&other, entries);
	two.all[1] = two.all[0]; /* the same prompt twice */
	two.all[1].ids = two.ids[1];
	run(&f, &one, &task, 1);
	run(&f, &two, &task, 3);
	task.seed = 8;
	run(&f, &other, &task, 1);
	assert_memory_equal(one.ids[0], two.ids[0], sizeof one.ids[0]);
	assert_memory_equal(one.ids[2], two.ids[2], sizeof one.ids[2]);
	assert_memory_not_equal(two.ids[0], two.ids[1], sizeof two.ids[0]);
	assert_memory_not_equal(one.ids[0], other.ids[0], sizeof one.ids[0]);
	free_prompts(&one);
	free_prompts(&two);
	free_prompts(&other);
	close_fixture(&f);
	json_decref(greedy);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_own), cmocka_unit_test(test_stops),
									   cmocka_unit_test(test_positions), cmocka_unit_test(test_seeds)};
	const struct CMUnitTest shared_models[] = {cmocka_unit_test(test_shared)};
	TEST_PART(shared_models);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
