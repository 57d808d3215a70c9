/* SPDX-License-Identifier: Apache-2.0 */
#include "evaluation/loglikelihood_plan.h"

#include "base/memory.h"

#include <stdlib.h>

/* For a shorter prefix, copying costs more than it saves. */
enum { LEAST_SHARED = 4 };

static int64_t common_prefix(const int32_t *a, int64_t a_length, const int32_t *b, int64_t b_length)
{
	int64_t length = a_length < b_length ? a_length : b_length;
	int64_t i = 0;
	while (i < length && a[i] == b[i])
		i++;
	return i;
}

static int compare_entries(const void *left, const void *right)
{
	const fp_plan_entry *a = left;
	const fp_plan_entry *b = right;
	int64_t i = common_prefix(a->ids, a->length, b->ids, b->length);
	if (i < a->length && i < b->length)
		return a->ids[i] < b->ids[i] ? -1 : 1;
	if (a->length != b->length)
		return a->length < b->length ? -1 : 1;
	return a->request < b->request ? -1 : 1;
}

/* The longest first, so that the first group determines a batch's length. */
static int compare_groups(const void *left, const void *right)
{
	const fp_plan_group *a = left;
	const fp_plan_group *b = right;
	if (a->longest != b->longest)
		return a->longest > b->longest ? -1 : 1;
	return a->first_sequence < b->first_sequence ? -1 : 1;
}

static void find_sequences(fp_plan *plan)
{
	for (int64_t i = 0; plan->sequences && i < plan->entry_count; i++) {
		const fp_plan_entry *entry = &plan->entries[i];
		fp_plan_sequence *last = plan->sequence_count > 0 ? &plan->sequences[plan->sequence_count - 1] : NULL;
		if (last && last->length == entry->length &&
			common_prefix(last->ids, last->length, entry->ids, entry->length) == entry->length) {
			last->entry_count++;
			continue;
		}
		plan->sequences[plan->sequence_count++] =
			(fp_plan_sequence){.ids = entry->ids, .length = entry->length, .first_entry = i, .entry_count = 1};
	}
}

/* The number of sequences from `first` on that form a group, and the prefix they share. A sequence is
 * added as long as that saves rows. */
static int64_t group_size(const fp_plan *plan, int64_t first, int64_t batch_tokens, int64_t *shared)
{
	const fp_plan_sequence *leader = &plan->sequences[first];
	int64_t count = 1;
	int64_t longest = leader->length;
	*shared = leader->length;
	for (; first + count < plan->sequence_count; count++) {
		const fp_plan_sequence *next = &plan->sequences[first + count];
		int64_t common = common_prefix(leader->ids, *shared, next->ids, next->length);
		if (next->length > longest)
			longest = next->length;
		if (common < LEAST_SHARED || count * common <= (count - 1) * *shared || (count + 1) * longest > batch_tokens)
			break;
		*shared = common;
	}
	return count;
}

static void find_groups(fp_plan *plan, int64_t batch_tokens)
{
	int64_t shared;
	for (int64_t first = 0; first < plan->sequence_count; first += plan->groups[plan->group_count++].count) {
		fp_plan_group *group = &plan->groups[plan->group_count];
		*group = (fp_plan_group){.first_sequence = first, .count = group_size(plan, first, batch_tokens, &shared)};
		for (int64_t i = 0; i < group->count; i++) {
			fp_plan_sequence *sequence = &plan->sequences[first + i];
			sequence->shared = shared;
			sequence->start = 0;
			sequence->tail = i == 0 ? shared : group->rows;
			group->rows += i == 0 ? sequence->length : sequence->length - shared;
			if (sequence->length > group->longest)
				group->longest = sequence->length;
		}
	}
}

static void find_batches(fp_plan *plan, int64_t batch_tokens)
{
	for (int64_t at = 0; at < plan->group_count;) {
		fp_plan_batch *batch = &plan->batches[plan->batch_count++];
		*batch = (fp_plan_batch){.first_group = at, .length = plan->groups[at].longest};
		do {
			const fp_plan_group *group = &plan->groups[at++];
			for (int64_t i = 0; i < group->count; i++) {
				plan->sequences[group->first_sequence + i].start += batch->rows;
				plan->sequences[group->first_sequence + i].tail += batch->rows;
			}
			batch->group_count++;
			batch->sequences += group->count;
			batch->rows += group->rows;
		} while (at < plan->group_count && (batch->sequences + plan->groups[at].count) * batch->length <= batch_tokens);
		if (batch->rows > plan->most_rows)
			plan->most_rows = batch->rows;
		if (batch->sequences * batch->length > plan->most_unpacked)
			plan->most_unpacked = batch->sequences * batch->length;
	}
}

fp_status fp_plan_make(fp_plan *out, fp_context *ctx, const fp_likelihood_request *requests, int64_t count,
					   int64_t length, int64_t batch_tokens)
{
	fp_status status;
	fp_plan plan = {.entry_count = count};
	*out = plan;
	FP_TRY(FP_NEW(ctx, &plan.entries, count));
	FP_TRY(FP_NEW(ctx, &plan.sequences, count));
	FP_TRY(FP_NEW(ctx, &plan.groups, count));
	FP_TRY(FP_NEW(ctx, &plan.batches, count));
	for (int64_t i = 0; i < count; i++) {
		int64_t tokens = requests[i].context + requests[i].continuation;
		int64_t input = tokens - 1 < length ? tokens - 1 : length;
		plan.entries[i] = (fp_plan_entry){.ids = requests[i].ids + (tokens - 1 - input), .length = input, .request = i};
	}
	qsort(plan.entries, (size_t)count, sizeof *plan.entries, compare_entries);
	find_sequences(&plan);
	find_groups(&plan, batch_tokens);
	qsort(plan.groups, (size_t)plan.group_count, sizeof *plan.groups, compare_groups);
	find_batches(&plan, batch_tokens);
	*out = plan;
	plan = (fp_plan){0};
cleanup:
	fp_plan_free(&plan);
	return status;
}

void fp_plan_free(fp_plan *plan)
{
	fp_free(plan->entries);
	fp_free(plan->sequences);
	fp_free(plan->groups);
	fp_free(plan->batches);
	*plan = (fp_plan){0};
}
