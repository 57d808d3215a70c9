/* SPDX-License-Identifier: Apache-2.0 */
/* The decoder against the whole forward pass, for every fixture: the logits behind each token must be those that a pass
 * over all tokens so far gives, and at the end those of transformers. */
#include "generation/decoder.h"
#include "model_fixture.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of logits. Single precision gives about 1e-5; a wrong position or angle gives 1e-2 or more. */
static const float tolerance = 2e-4F;

typedef struct decoding {
	model_fixture f;
	const char *name;
	expected_output expected;
	float *whole;  /* sequences × length × vocabulary: by a pass over the tokens so far */
	float *logits; /* sequences × vocabulary */
} decoding;

static void compare(const decoding *d, const float *got, const float *wanted, int sequence, int64_t tokens,
					const char *what)
{
	for (int32_t i = 0; i < d->expected.vocabulary; i++)
		if (!(fabsf(got[i] - wanted[i]) < tolerance))
			fail_msg("%s, %s: sequence %d, %lld tokens: logit %d is %g, expected %g", d->name, what, sequence,
					 (long long)tokens, (int)i, (double)got[i], (double)wanted[i]);
}

static const float *whole_at(const decoding *d, int sequence, int64_t tokens)
{
	return d->whole + (sequence * d->expected.length + tokens - 1) * d->expected.vocabulary;
}

static const int32_t *ids_at(const decoding *d, int sequence, int64_t token)
{
	return d->expected.ids + sequence * d->expected.length + token;
}

/* One pass over 1, 2, … tokens for the logits behind each: rotary angles may depend on their number. */
static void run_whole(decoding *d)
{
	int32_t vocabulary = d->expected.vocabulary;
	for (int s = 0; s < d->expected.sequences; s++)
		for (int64_t n = 1; n <= d->expected.length; n++) {
			fp_matrix hidden, logits;
			run_model(&d->f, ids_at(d, s, 0), 1, n, &hidden);
			assert_ok(d->f.ctx, fp_model_logits(d->f.model, fp_matrix_rows(hidden, n - 1, 1), &logits));
			assert_ok(d->f.ctx,
					  d->f.be->memory->download(d->f.be, (float *)whole_at(d, s, n), FP_F32, vocabulary, logits));
			assert_ok(d->f.ctx, d->f.be->memory->synchronize(d->f.be));
			fp_matrix_free(d->f.be, &hidden);
		}
}

static void begin(decoding *d, const char *name)
{
	d->name = name;
	open_fixture(&d->f, name);
	read_expected(&d->expected, name);
	size_t rows = (size_t)d->expected.sequences * (size_t)d->expected.length,
		   vocabulary = (size_t)d->expected.vocabulary;
	d->whole = malloc(rows * vocabulary * sizeof *d->whole);
	d->logits = malloc((size_t)d->expected.sequences * vocabulary * sizeof *d->logits);
	run_whole(d);
}

static void end(decoding *d)
{
	free(d->whole);
	free(d->logits);
	free(d->expected.ids);
	free(d->expected.logits);
	close_fixture(&d->f);
}

/* All sequences together, a token at a time from the first one on. */
static void check_steps(decoding *d)
{
	fp_decoder *decoder;
	int64_t slots[16], length = d->expected.length;
	int32_t ids[16];
	assert_true(d->expected.sequences <= 16);
	assert_ok(d->f.ctx, fp_decoder_new(&decoder, d->f.model, d->expected.sequences, length, 0, FP_HELD_SMALLEST));
	for (int64_t n = 1; n <= length; n++) {
		for (int s = 0; s < d->expected.sequences; s++) {
			slots[s] = s;
			ids[s] = *ids_at(d, s, n - 1);
		}
		assert_ok(d->f.ctx, fp_decoder_step(decoder, slots, ids, d->expected.sequences, d->logits));
		for (int s = 0; s < d->expected.sequences; s++)
			compare(d, d->logits + s * d->expected.vocabulary, whole_at(d, s, n), s, n, "steps");
	}
	for (int s = 0; s < d->expected.sequences; s++)
		compare(d, d->logits + s * d->expected.vocabulary,
				d->expected.logits + ((s + 1) * length - 1) * d->expected.vocabulary, s, length, "transformers");
	fp_decoder_free(decoder);
}

/* A prompt in two parts in one slot, a shorter one in another that was used before, then both together, last slot first:
 * the two are at different positions. */
static void check_ragged(decoding *d)
{
	fp_decoder *decoder;
	int last = d->expected.sequences - 1;
	int64_t length = d->expected.length, count[2] = {length / 2, length / 3 + 1}, slots[2] = {2, 0};
	assert_ok(d->f.ctx, fp_decoder_new(&decoder, d->f.model, 3, length, 0, FP_HELD_SMALLEST));
	assert_ok(d->f.ctx, fp_decoder_append(decoder, 0, ids_at(d, 0, 0), 2, d->logits));
	fp_decoder_clear(decoder, 0);
	assert_ok(d->f.ctx, fp_decoder_append(decoder, 2, ids_at(d, 0, 0), 2, d->logits));
	compare(d, d->logits, whole_at(d, 0, 2), 0, 2, "prompt");
	assert_ok(d->f.ctx, fp_decoder_append(decoder, 2, ids_at(d, 0, 2), count[0] - 2, d->logits));
	compare(d, d->logits, whole_at(d, 0, count[0]), 0, count[0], "second part");
	assert_ok(d->f.ctx, fp_decoder_append(decoder, 0, ids_at(d, last, 0), count[1], d->logits));
	compare(d, d->logits, whole_at(d, last, count[1]), last, count[1], "other slot");
	while (count[0] < length && count[1] < length) {
		float *logits = malloc(2 * (size_t)d->expected.vocabulary * sizeof *logits);
		const int32_t ids[2] = {*ids_at(d, 0, count[0]), *ids_at(d, last, count[1])};
		assert_ok(d->f.ctx, fp_decoder_step(decoder, slots, ids, 2, logits));
		count[0]++;
		count[1]++;
		compare(d, logits, whole_at(d, 0, count[0]), 0, count[0], "ragged");
		compare(d, logits + d->expected.vocabulary, whole_at(d, last, count[1]), last, count[1], "ragged");
		free(logits);
	}
	fp_decoder_free(decoder);
}

/* Weights as masks: a prompt and the token behind it give the same logits as dense ones, on a CPU the same bits. */
static void check_forms(decoding *d)
{
	static const fp_held_form forms[2] = {FP_HELD_DENSE, FP_HELD_MASK};
	size_t vocabulary = (size_t)d->expected.vocabulary;
	int64_t slot = 0, prompt = d->expected.length - 1;
	float *logits[2];
	for (int i = 0; i < 2; i++) {
		fp_decoder *decoder;
		logits[i] = malloc(2 * vocabulary * sizeof *logits[i]);
		assert_ok(d->f.ctx, fp_decoder_new(&decoder, d->f.model, 1, prompt + 1, 0, forms[i]));
		fp_decoder_weights held = fp_decoder_held(decoder);
		assert_true(held.operators[forms[i]] > 0 && held.operators[forms[1 - i]] == 0);
		assert_true(held.bytes[forms[i]] > 0 && held.entries > 0 && held.head_bytes > 0);
		assert_ok(d->f.ctx, fp_decoder_append(decoder, slot, ids_at(d, 0, 0), prompt, logits[i]));
		assert_ok(d->f.ctx, fp_decoder_step(decoder, &slot, ids_at(d, 0, prompt), 1, logits[i] + vocabulary));
		fp_decoder_free(decoder);
	}
	if (strcmp(d->f.be->name, "cpu") == 0)
		assert_memory_equal(logits[0], logits[1], 2 * vocabulary * sizeof **logits);
	for (int n = 0; n < 2; n++)
		compare(d, logits[1] + n * vocabulary, logits[0] + n * vocabulary, 0, prompt + n, "mask");
	free(logits[0]);
	free(logits[1]);
}

static int is_fixture(const struct dirent *entry)
{
	char path[512];
	snprintf(path, sizeof path, "tests/fixtures/model/%s/expected.bin", entry->d_name);
	return entry->d_name[0] != '.' && access(source_path(path), R_OK) == 0;
}

/* Every folder with expected logits: a new family is tested without a change here. */
static void test_fixtures(void **state)
{
	(void)state;
	struct dirent **entries;
	int count = scandir(source_path("tests/fixtures/model"), &entries, is_fixture, alphasort);
	assert_true(count > 50);
	for (int i = 0; i < count; i++) {
		decoding d;
		begin(&d, entries[i]->d_name);
		check_steps(&d);
		check_ragged(&d);
		check_forms(&d);
		end(&d);
		free(entries[i]);
	}
	free(entries);
}

/* Products of many rows expand the weights: the logits behind a long prompt are those behind its parts. */
static void test_long_prompt(void **state)
{
	(void)state;
	enum { LENGTH = 150, PART = 30 };
	static const fp_held_form forms[] = {FP_HELD_DENSE, FP_HELD_MASK};
	model_fixture f = {0};
	int32_t ids[LENGTH];
	assert_ok(f.ctx, open_directory(&f, source_path("models/llama-demo")));
	int64_t vocabulary = fp_model_get_config(f.model)->vocabulary;
	float *logits[2] = {malloc((size_t)vocabulary * sizeof(float)), malloc((size_t)vocabulary * sizeof(float))};
	for (int i = 0; i < LENGTH; i++)
		ids[i] = (int32_t)(i * 37 % vocabulary);
	for (int form = 0; form < 2; form++) {
		fp_decoder *decoder;
		assert_ok(f.ctx, fp_decoder_new(&decoder, f.model, 2, LENGTH, 0, forms[form]));
		assert_ok(f.ctx, fp_decoder_append(decoder, 0, ids, LENGTH, logits[0]));
		for (int first = 0; first < LENGTH; first += PART)
			assert_ok(f.ctx, fp_decoder_append(decoder, 1, ids + first, PART, logits[1]));
		for (int64_t i = 0; i < vocabulary; i++)
			assert_true(fabsf(logits[0][i] - logits[1][i]) < tolerance);
		fp_decoder_free(decoder);
	}
	free(logits[0]);
	free(logits[1]);
	close_fixture(&f);
}

static void test_limits(void **state)
{
	(void)state;
	model_fixture f;
	fp_decoder *decoder;
	float *logits;
	open_fixture(&f, "llama-plain");
	const fp_model_config *c = fp_model_get_config(f.model);
	logits = malloc((size_t)c->vocabulary * sizeof *logits);
	const int32_t ids[4] = {1, 2, 3, 4};
	assert_fails(f.ctx, FP_ERROR_USAGE, "positions",
				 fp_decoder_new(&decoder, f.model, 1, c->positions + 1, 0, FP_HELD_SMALLEST));
	assert_null(decoder);
	assert_fails(f.ctx, FP_ERROR_MEMORY, "whole model",
				 fp_decoder_new(&decoder, f.model, 1, 4, 1000, FP_HELD_SMALLEST));
	assert_fails(f.ctx, FP_ERROR_MEMORY, "keys and values of 1000000000 sequences",
				 fp_decoder_new(&decoder, f.model, 1000000000, 4, (int64_t)1 << 40, FP_HELD_SMALLEST));
	assert_ok(f.ctx, fp_decoder_new(&decoder, f.model, 1, 4, 0, FP_HELD_SMALLEST));
	assert_ok(f.ctx, fp_decoder_append(decoder, 0, ids, 4, logits));
	assert_fails(f.ctx, FP_ERROR_INTERNAL, "capacity", fp_decoder_step(decoder, (const int64_t[]){0}, ids, 1, logits));
	fp_decoder_clear(decoder, 0);
	assert_fails(f.ctx, FP_ERROR_INPUT, "vocabulary",
				 fp_decoder_append(decoder, 0, (const int32_t[]){(int32_t)c->vocabulary}, 1, logits));
	fp_decoder_free(decoder);
	free(logits);
	close_fixture(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_fixtures), cmocka_unit_test(test_long_prompt),
									   cmocka_unit_test(test_limits)};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
