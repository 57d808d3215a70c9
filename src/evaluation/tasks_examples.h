/* SPDX-License-Identifier: Apache-2.0 */
/* tasks_examples.h: the examples of a task file, each with pairs of context and continuation to score. */
#ifndef FP_EVALUATION_TASKS_EXAMPLES_H
#define FP_EVALUATION_TASKS_EXAMPLES_H

#include "tokenizer/unicode_text.h"

#include <jansson.h>

typedef struct fp_piece { /* borrowed bytes */
	const char *bytes;
	int64_t length;
} fp_piece;

typedef struct fp_task_text { /* a part of fp_task_examples.text */
	int64_t first, length;
} fp_task_text;

typedef struct fp_task_pair {
	fp_task_text context, continuation;
	int64_t characters; /* acc_norm's divisor */
} fp_task_pair;

typedef struct fp_task_example {
	int64_t line;
	int64_t first_pair, pair_count;
	int64_t gold; /* −1: a single continuation */
} fp_task_example;

typedef struct fp_task_examples { /* freed with fp_task_examples_free() */
	fp_context *ctx;
	const char *path;    /* borrowed, for messages */
	int64_t line;        /* current line */
	fp_text_buffer text; /* of all examples */
	fp_task_pair *pairs;
	fp_task_example *examples;
	int64_t pair_count, pair_capacity, count, capacity;
	fp_text_buffer scratch;
} fp_task_examples;

/* Adds the example of one record: a line of JSON, or a table row as an object of strings. */
typedef fp_status (*fp_task_prompt)(fp_task_examples *out, const json_t *record);

typedef enum fp_task_layout { FP_TASK_JSON_LINES, FP_TASK_TABLE } fp_task_layout;

typedef struct fp_task_row {
	const char *name;
	fp_task_layout layout;
	bool label_file; /* NAME.jsonl may have its labels in NAME-labels.lst, one number per line */
	bool acc_norm;   /* lm-evaluation-harness reports acc_norm */
	bool single;     /* one continuation, correct if greedy; perplexity is reported */
	fp_task_prompt prompt;
} fp_task_row;

const fp_task_row *fp_task_find(const char *name); /* NULL: no such task */
void fp_task_names(char *out, size_t size);        /* comma-separated */

/* Reads the first `limit` examples (0: all) of a plain, gzip or zstd file. *out must be zero except ctx. */
fp_status fp_task_read(fp_task_examples *out, const fp_task_row *task, const char *path, int64_t limit);
void fp_task_examples_free(fp_task_examples *examples);

/* "path: line N: …", FP_ERROR_INPUT. */
fp_status fp_task_fail(const fp_task_examples *examples, const char *format, ...) __attribute__((format(printf, 2, 3)));

bool fp_is_python_space(uint32_t code); /* str.isspace() */

/* --- for the prompts ------------------------------------------------------------------------------------------ */

enum { FP_MOST_CHOICES = 64 };

/* A string literal. */
#define FP_PIECE(literal) ((fp_piece){literal, (int64_t)sizeof(literal) - 1})
/* Concatenates pieces into one text of the examples. */
#define FP_COMPOSE(examples, text, ...)                                                                                \
	fp_task_compose((examples), (text), (const fp_piece[]){__VA_ARGS__},                                               \
					(int)(sizeof((const fp_piece[]){__VA_ARGS__}) / sizeof(fp_piece)))
fp_status fp_task_compose(fp_task_examples *examples, fp_task_text *text, const fp_piece *pieces, int count);
int64_t fp_task_characters_in(fp_piece text);
fp_piece fp_task_strip(fp_piece text); /* str.strip() */

fp_status fp_task_add_pair(fp_task_examples *examples, fp_task_text context, fp_task_text continuation,
						   int64_t characters);
/* Adds the example whose pairs start at first_pair. */
fp_status fp_task_add_example(fp_task_examples *examples, int64_t first_pair, int64_t gold);
/* Adds an example with one context and several choices. */
fp_status fp_task_add_choices(fp_task_examples *examples, fp_task_text context, const fp_piece *choices, int64_t count,
							  int64_t gold);
/* Fails if there are fewer than two choices or `gold` is not one of them. */
fp_status fp_task_check_label(const fp_task_examples *examples, int64_t choices, int64_t gold);

fp_status fp_task_text_at(fp_task_examples *examples, const json_t *record, const char *key, fp_piece *out);
/* A list of strings under `key`. */
fp_status fp_task_texts_at(fp_task_examples *examples, const json_t *record, const char *key,
						   fp_piece out[static FP_MOST_CHOICES], int64_t *count);
/* Accepts 3, "3", true, or one of `words` (may be NULL), whose index is the label. Rejects negative
 * numbers, which mean that there is no label. */
fp_status fp_task_label_at(fp_task_examples *examples, const json_t *record, const char *key, const char *const *words,
						   int64_t *out);

#endif
