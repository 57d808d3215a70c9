/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tasks_prompts.c: the table of tasks and their prompts, identical to those of lm-evaluation-harness.
 *
 * A continuation is a space, the harness's target delimiter, followed by the choice. acc_norm divides by
 * the length of the choice without the space.
 */
#include "base/memory.h"
#include "evaluation/tasks_examples.h"
#include "evaluation/tasks_swag.h"

#include <stdio.h>
#include <string.h>

static int64_t find_label(const json_t *label, const fp_piece *labels, int64_t count)
{
	const char *text = json_is_string(label) ? json_string_value(label) : "";
	size_t length = strlen(text);
	while (length > 0 && fp_is_python_space((unsigned char)*text)) { /* OpenBookQA has leading spaces */
		text++;
		length--;
	}
	for (int64_t i = 0; i < count; i++)
		if (labels[i].length == (int64_t)length && memcmp(labels[i].bytes, text, length) == 0)
			return i;
	return -1;
}

/* AI2's layout: {"question": {"stem", "choices": [{"text", "label"}]}, "answerKey"}; or Hugging Face's:
 * {"question" or "question_stem", "choices": {"text": […], "label": […]}, "answerKey"}. */
static fp_status read_science_question(fp_task_examples *examples, const json_t *record, fp_piece *stem,
									   fp_piece choices[static FP_MOST_CHOICES], int64_t *count, int64_t *gold)
{
	fp_status status;
	fp_piece labels[FP_MOST_CHOICES];
	int64_t label_count;
	const json_t *question = json_object_get(record, "question");
	const json_t *answer = json_object_get(record, "answerKey");
	const json_t *list = json_object_get(record, "choices");
	if (json_is_object(question)) {
		FP_TRY(fp_task_text_at(examples, question, "stem", stem));
		list = json_object_get(question, "choices");
		if (!json_is_array(list) || json_array_size(list) > FP_MOST_CHOICES)
			return fp_task_fail(examples, "\"choices\" must be a list of at most %d choices", FP_MOST_CHOICES);
		*count = (int64_t)json_array_size(list);
		for (int64_t i = 0; i < *count; i++) {
			FP_TRY(fp_task_text_at(examples, json_array_get(list, (size_t)i), "text", &choices[i]));
			FP_TRY(fp_task_text_at(examples, json_array_get(list, (size_t)i), "label", &labels[i]));
		}
	} else {
		FP_TRY(fp_task_text_at(examples, record, question ? "question" : "question_stem", stem));
		FP_TRY(fp_task_texts_at(examples, list, "text", choices, count));
		FP_TRY(fp_task_texts_at(examples, list, "label", labels, &label_count));
		if (label_count != *count)
			return fp_task_fail(examples, "has %lld choices and %lld labels", (long long)*count,
								(long long)label_count);
	}
	*gold = find_label(answer, labels, *count);
	if (*gold < 0)
		status = fp_task_fail(examples, "\"answerKey\" (%s) is not the label of a choice",
							  json_is_string(answer) ? json_string_value(answer) : "missing");
cleanup:
	return status;
}

static fp_status arc(fp_task_examples *examples, const json_t *record)
{
	fp_status status;
	fp_piece stem, choices[FP_MOST_CHOICES];
	int64_t count = 0, gold = 0;
	fp_task_text context;
	FP_TRY(read_science_question(examples, record, &stem, choices, &count, &gold));
	FP_TRY(FP_COMPOSE(examples, &context, FP_PIECE("Question: "), stem, FP_PIECE("\nAnswer:")));
	FP_TRY(fp_task_add_choices(examples, context, choices, count, gold));
cleanup:
	return status;
}

static fp_status openbookqa(fp_task_examples *examples, const json_t *record)
{
	fp_status status;
	fp_piece stem, choices[FP_MOST_CHOICES];
	int64_t count = 0, gold = 0;
	fp_task_text context;
	FP_TRY(read_science_question(examples, record, &stem, choices, &count, &gold));
	FP_TRY(FP_COMPOSE(examples, &context, stem));
	FP_TRY(fp_task_add_choices(examples, context, choices, count, gold));
cleanup:
	return status;
}

/* Partial scoring: the option is part of the context, and the text after the blank is scored. */
static fp_status winogrande(fp_task_examples *examples, const json_t *record)
{
	fp_status status;
	fp_piece sentence, options[2];
	fp_task_text context, continuation;
	int64_t first = examples->pair_count;
	int64_t gold;
	FP_TRY(fp_task_text_at(examples, record, "sentence", &sentence));
	FP_TRY(fp_task_text_at(examples, record, "option1", &options[0]));
	FP_TRY(fp_task_text_at(examples, record, "option2", &options[1]));
	FP_TRY(fp_task_label_at(examples, record, "answer", NULL, &gold));
	if (gold != 1 && gold != 2)
		return fp_task_fail(examples, "\"answer\" is %lld; it must be \"1\" or \"2\"", (long long)gold);
	const char *blank = memchr(sentence.bytes, '_', (size_t)sentence.length);
	if (!blank)
		return fp_task_fail(examples, "\"sentence\" has no blank (_) for the options");
	fp_piece before = {sentence.bytes, blank - sentence.bytes};
	fp_piece after = fp_task_strip((fp_piece){blank + 1, sentence.length - before.length - 1});
	for (int i = 0; i < 2; i++) {
		FP_TRY(FP_COMPOSE(examples, &context, before, options[i]));
		FP_TRY(FP_COMPOSE(examples, &continuation, FP_PIECE(" "), after));
		FP_TRY(fp_task_add_pair(examples, context, continuation, fp_task_characters_in(after)));
	}
	FP_TRY(fp_task_add_example(examples, first, gold - 1));
cleanup:
	return status;
}

static fp_status boolq(fp_task_examples *examples, const json_t *record)
{
	fp_status status;
	const fp_piece choices[] = {FP_PIECE("no"), FP_PIECE("yes")};
	fp_piece passage, question;
	fp_task_text context;
	int64_t gold;
	FP_TRY(fp_task_text_at(examples, record, "passage", &passage));
	FP_TRY(fp_task_text_at(examples, record, "question", &question));
	FP_TRY(fp_task_label_at(examples, record, json_object_get(record, "answer") ? "answer" : "label", NULL, &gold));
	FP_TRY(FP_COMPOSE(examples, &context, passage, FP_PIECE("\nQuestion: "), question, FP_PIECE("?\nAnswer:")));
	FP_TRY(fp_task_add_choices(examples, context, choices, 2, gold));
cleanup:
	return status;
}

/* A question about two texts of a record, with two answers in the order of the labels. */
typedef struct pair_prompt {
	const char *first, *second; /* keys */
	fp_piece between, after;
	const char *labels[3]; /* ends with NULL */
	fp_piece choices[2];
} pair_prompt;

static fp_status add_pair_question(fp_task_examples *examples, const json_t *record, const pair_prompt *prompt)
{
	fp_status status;
	fp_piece first, second;
	fp_task_text context;
	int64_t gold;
	FP_TRY(fp_task_text_at(examples, record, prompt->first, &first));
	FP_TRY(fp_task_text_at(examples, record, prompt->second, &second));
	FP_TRY(fp_task_label_at(examples, record, "label", prompt->labels, &gold));
	FP_TRY(FP_COMPOSE(examples, &context, first, prompt->between, second, prompt->after));
	FP_TRY(fp_task_add_choices(examples, context, prompt->choices, 2, gold));
cleanup:
	return status;
}

/* RTE and WNLI have the same prompt but opposite label orders. */
static fp_status rte(fp_task_examples *examples, const json_t *record)
{
	const pair_prompt prompt = {"sentence1",
								"sentence2",
								FP_PIECE("\nQuestion: "),
								FP_PIECE(" True or False?\nAnswer:"),
								{"entailment", "not_entailment"},
								{FP_PIECE("True"), FP_PIECE("False")}};
	return add_pair_question(examples, record, &prompt);
}

static fp_status wnli(fp_task_examples *examples, const json_t *record)
{
	const pair_prompt prompt = {"sentence1",
								"sentence2",
								FP_PIECE("\nQuestion: "),
								FP_PIECE(" True or False?\nAnswer:"),
								{"not_entailment", "entailment"},
								{FP_PIECE("False"), FP_PIECE("True")}};
	return add_pair_question(examples, record, &prompt);
}

static fp_status qnli(fp_task_examples *examples, const json_t *record)
{
	const pair_prompt prompt = {"question",
								"sentence",
								FP_PIECE("\n"),
								FP_PIECE("\nQuestion: Does this response answer the question?\nAnswer:"),
								{"entailment", "not_entailment"},
								{FP_PIECE("yes"), FP_PIECE("no")}};
	return add_pair_question(examples, record, &prompt);
}

static fp_status hellaswag(fp_task_examples *examples, const json_t *record)
{
	fp_status status;
	fp_piece activity, first, second, endings[FP_MOST_CHOICES];
	fp_task_text context, continuation;
	fp_text_buffer plain = {0};
	int64_t first_pair = examples->pair_count;
	int64_t count, gold;
	FP_TRY(fp_task_text_at(examples, record, "activity_label", &activity));
	FP_TRY(fp_task_text_at(examples, record, "ctx_a", &first));
	FP_TRY(fp_task_text_at(examples, record, "ctx_b", &second));
	FP_TRY(fp_task_texts_at(examples, record, "endings", endings, &count));
	FP_TRY(fp_task_label_at(examples, record, "label", NULL, &gold));
	FP_TRY(fp_task_check_label(examples, count, gold));
	examples->scratch.length = 0;
	FP_TRY(fp_text_append(examples->ctx, &examples->scratch, activity.bytes, activity.length));
	FP_TRY(fp_text_append(examples->ctx, &examples->scratch, ": ", 2));
	FP_TRY(fp_text_append(examples->ctx, &examples->scratch, first.bytes, first.length));
	FP_TRY(fp_text_append(examples->ctx, &examples->scratch, " ", 1));
	FP_TRY(fp_swag_capitalize(examples->ctx, second.bytes, second.length, &examples->scratch));
	fp_piece query = fp_task_strip((fp_piece){examples->scratch.bytes, examples->scratch.length});
	FP_TRY(fp_swag_clean(examples->ctx, query.bytes, query.length, &plain));
	FP_TRY(FP_COMPOSE(examples, &context, (fp_piece){plain.bytes, plain.length}));
	for (int64_t i = 0; i < count; i++) {
		fp_piece ending = fp_task_strip(endings[i]);
		FP_TRY(fp_swag_clean(examples->ctx, ending.bytes, ending.length, &plain));
		ending = (fp_piece){plain.bytes, plain.length};
		FP_TRY(FP_COMPOSE(examples, &continuation, FP_PIECE(" "), ending));
		FP_TRY(fp_task_add_pair(examples, context, continuation, fp_task_characters_in(ending)));
	}
	FP_TRY(fp_task_add_example(examples, first_pair, gold));
cleanup:
	fp_free(plain.bytes);
	return status;
}

static fp_status piqa(fp_task_examples *examples, const json_t *record)
{
	fp_status status;
	fp_piece goal, solutions[2];
	fp_task_text context;
	int64_t gold;
	FP_TRY(fp_task_text_at(examples, record, "goal", &goal));
	FP_TRY(fp_task_text_at(examples, record, "sol1", &solutions[0]));
	FP_TRY(fp_task_text_at(examples, record, "sol2", &solutions[1]));
	if (!json_object_get(record, "label"))
		return fp_task_fail(examples, "has no label; add one, or put NAME-labels.lst beside NAME.jsonl");
	FP_TRY(fp_task_label_at(examples, record, "label", NULL, &gold));
	FP_TRY(FP_COMPOSE(examples, &context, FP_PIECE("Question: "), goal, FP_PIECE("\nAnswer:")));
	FP_TRY(fp_task_add_choices(examples, context, solutions, 2, gold));
cleanup:
	return status;
}

/* Predicts the last word. */
static fp_status lambada(fp_task_examples *examples, const json_t *record)
{
	fp_status status;
	fp_piece text;
	fp_task_text context, continuation;
	int64_t first = examples->pair_count;
	FP_TRY(fp_task_text_at(examples, record, "text", &text));
	int64_t word = text.length;
	while (word > 0 && text.bytes[word - 1] != ' ')
		word--;
	fp_piece last = {text.bytes + word, text.length - word};
	FP_TRY(FP_COMPOSE(examples, &context, (fp_piece){text.bytes, word > 0 ? word - 1 : 0}));
	FP_TRY(FP_COMPOSE(examples, &continuation, FP_PIECE(" "), last));
	FP_TRY(fp_task_add_pair(examples, context, continuation, fp_task_characters_in(last) + 1));
	FP_TRY(fp_task_add_example(examples, first, -1));
cleanup:
	return status;
}

/* {"context": …, "choices": […], "label": 0} */
static fp_status multiple_choice(fp_task_examples *examples, const json_t *record)
{
	fp_status status;
	fp_piece text, choices[FP_MOST_CHOICES];
	fp_task_text context;
	int64_t count, gold;
	FP_TRY(fp_task_text_at(examples, record, "context", &text));
	FP_TRY(fp_task_texts_at(examples, record, "choices", choices, &count));
	FP_TRY(fp_task_label_at(examples, record, "label", NULL, &gold));
	FP_TRY(FP_COMPOSE(examples, &context, text));
	FP_TRY(fp_task_add_choices(examples, context, choices, count, gold));
cleanup:
	return status;
}

static const fp_task_row task_table[] = {
	{.name = "arc_easy", .acc_norm = true, .prompt = arc},
	{.name = "arc_challenge", .acc_norm = true, .prompt = arc},
	{.name = "winogrande", .prompt = winogrande},
	{.name = "boolq", .prompt = boolq},
	{.name = "rte", .layout = FP_TASK_TABLE, .prompt = rte},
	{.name = "qnli", .layout = FP_TASK_TABLE, .prompt = qnli},
	{.name = "wnli", .layout = FP_TASK_TABLE, .prompt = wnli},
	{.name = "hellaswag", .acc_norm = true, .prompt = hellaswag},
	{.name = "piqa", .acc_norm = true, .label_file = true, .prompt = piqa},
	{.name = "openbookqa", .acc_norm = true, .prompt = openbookqa},
	{.name = "lambada_openai", .single = true, .prompt = lambada},
	{.name = "multiple_choice", .acc_norm = true, .prompt = multiple_choice},
};
enum { TASK_COUNT = sizeof task_table / sizeof task_table[0] };

const fp_task_row *fp_task_find(const char *name)
{
	for (size_t i = 0; i < TASK_COUNT; i++)
		if (strcmp(task_table[i].name, name) == 0)
			return &task_table[i];
	return NULL;
}

void fp_task_names(char *out, size_t size)
{
	size_t used = 0;
	out[0] = '\0';
	for (size_t i = 0; i < TASK_COUNT && used < size; i++)
		used += (size_t)snprintf(out + used, size - used, "%s%s", i ? ", " : "", task_table[i].name);
}
