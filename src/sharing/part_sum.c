/* SPDX-License-Identifier: Apache-2.0 */
#include "sharing/part_sum.h"

#include "base/memory.h"
#include "base/numbers.h"

enum { GROUP = 4, LARGE_BYTES = 1 << 18 }; /* parts; of a matrix */

fp_status fp_addends_matrix(fp_addends *list, fp_context *ctx, fp_matrix m)
{
	if (fp_matrix_is_absent(m))
		return FP_OK;
	fp_status status = FP_GROW(ctx, &list->matrices, &list->matrix_capacity, list->matrix_count + 1);
	if (status == FP_OK)
		list->matrices[list->matrix_count++] = m;
	return status;
}

fp_status fp_addends_number(fp_addends *list, fp_context *ctx, double *number)
{
	fp_status status = FP_GROW(ctx, &list->numbers, &list->number_capacity, list->number_count + 1);
	if (status == FP_OK)
		list->numbers[list->number_count++] = number;
	return status;
}

void fp_addends_free(fp_addends *list)
{
	fp_free(list->matrices);
	fp_free(list->numbers);
	*list = (fp_addends){0};
}

static int64_t matrix_bytes(fp_matrix m)
{
	return fp_matrix_size(m) * fp_dtype_size(m.dtype);
}

static bool is_small(fp_matrix m)
{
	return matrix_bytes(m) < LARGE_BYTES;
}

/* Of the numbers and the small matrices. */
static int64_t small_bytes(const fp_addends *list)
{
	int64_t bytes = list->number_count * (int64_t)sizeof(double);
	for (int64_t i = 0; i < list->matrix_count; i++)
		bytes += is_small(list->matrices[i]) ? matrix_bytes(list->matrices[i]) : 0;
	return bytes;
}

/* Copies them between the list and host memory. */
static fp_status copy_small(const fp_addends *list, fp_backend *be, double *host, bool out)
{
	char *at = (char *)(host + list->number_count);
	fp_status status = FP_OK;
	for (int64_t i = 0; i < list->number_count; i++)
		*(out ? &host[i] : list->numbers[i]) = out ? *list->numbers[i] : host[i];
	for (int64_t i = 0; i < list->matrix_count; i++) {
		fp_matrix m = list->matrices[i];
		if (!is_small(m))
			continue;
		FP_TRY(out ? be->memory->download(be, at, m.dtype, m.cols, m) : be->memory->upload(be, m, at, m.dtype, m.cols));
		at += matrix_bytes(m);
	}
	FP_TRY(be->memory->synchronize(be)); /* before `host` is read or freed */
cleanup:
	return status;
}

/* Large matrices travel by themselves, all the rest in one message. */
static fp_status move_list(const fp_addends *list, const fp_share *share, fp_backend *be, fp_journey journey, int other)
{
	bool sends = journey == FP_SENDS || (journey == FP_BROADCASTS && fp_share_rank(share) == other);
	int64_t bytes = small_bytes(list);
	void *host = NULL;
	fp_status status;
	FP_TRY(fp_allocate_undefined(be->ctx, &host, bytes));
	if (sends)
		FP_TRY(copy_small(list, be, host, true));
	if (bytes > 0)
		FP_TRY(fp_share_bytes(share, journey, other, host, bytes));
	if (!sends)
		FP_TRY(copy_small(list, be, host, false));
	for (int64_t i = 0; i < list->matrix_count; i++)
		if (!is_small(list->matrices[i]))
			FP_TRY(fp_share_matrix(share, be, journey, other, list->matrices[i]));
cleanup:
	fp_free(host);
	return status;
}

fp_status fp_addends_send(const fp_addends *list, const fp_share *share, fp_backend *be, int to)
{
	return move_list(list, share, be, FP_SENDS, to);
}

fp_status fp_addends_receive(const fp_addends *list, const fp_share *share, fp_backend *be, int from)
{
	return move_list(list, share, be, FP_RECEIVES, from);
}

void fp_part_sum_open(fp_part_sum *sum, const fp_share *share, fp_backend *be, fp_register_make make, void *data)
{
	*sum = (fp_part_sum){.share = share, .be = be, .make = make, .data = data, .next = share->begin};
	for (int part = 0; part < share->parts; part++)
		sum->used[part] = fp_share_window(share, part) < fp_share_window(share, part + 1);
}

void fp_part_sum_close(fp_part_sum *sum)
{
	for (int i = 0; i < sum->made; i++)
		fp_addends_free(&sum->registers[i]);
	*sum = (fp_part_sum){0};
}

/* True if two neighbours on the stack are the operands of an addition of the tree. */
static bool joins(fp_part_fragment a, fp_part_fragment b)
{
	bool part = b.end == b.begin + 1 && a.begin % GROUP == 0 && b.end <= a.begin + GROUP;
	bool group = a.begin == 0 && a.end % GROUP == 0 && b.begin % GROUP == 0 && b.end == b.begin + GROUP;
	return part || group;
}

/* Where the last addition of parts [begin, end) divides them. */
static int division(int begin, int end)
{
	return end - begin > GROUP ? end - GROUP : end - 1;
}

fp_status fp_part_sum_take_register(fp_part_sum *sum, int *which)
{
	bool taken[FP_PARTS + 1] = {false};
	for (int i = 0; i < sum->depth; i++)
		if (sum->stack[i].which >= 0)
			taken[sum->stack[i].which] = true;
	for (*which = 0; taken[*which];)
		++*which;
	if (*which < sum->made)
		return FP_OK;
	sum->made = *which + 1;
	return sum->make(sum->data, *which, &sum->registers[*which]);
}

/* Register `to` ← to + from */
static fp_status add(const fp_part_sum *sum, int to, int from)
{
	fp_backend *be = sum->be;
	const fp_addends *a = &sum->registers[to], *b = &sum->registers[from];
	fp_status status = FP_OK;
	FP_REQUIRE(be, a->matrix_count == b->matrix_count && a->number_count == b->number_count);
	for (int64_t i = 0; i < a->matrix_count; i++)
		FP_TRY(be->linear->axpby(be, 1, b->matrices[i], 1, a->matrices[i]));
	for (int64_t i = 0; i < a->number_count; i++)
		*a->numbers[i] += *b->numbers[i];
cleanup:
	return status;
}

/* Replaces the two fragments on top of the stack by their sum. */
static fp_status join(fp_part_sum *sum)
{
	fp_part_fragment *a = &sum->stack[sum->depth - 2], *b = &sum->stack[sum->depth - 1];
	fp_status status = FP_OK;
	if (a->which < 0)
		a->which = b->which;
	else if (b->which >= 0)
		status = add(sum, a->which, b->which);
	a->end = b->end;
	sum->depth--;
	return status;
}

fp_status fp_part_sum_push(fp_part_sum *sum, fp_part_fragment fragment)
{
	fp_status status = FP_OK;
	sum->stack[sum->depth++] = fragment;
	while (status == FP_OK && sum->depth > 1 && joins(sum->stack[sum->depth - 2], sum->stack[sum->depth - 1]))
		status = join(sum);
	return status;
}

/* Unused parts up to `part` are fragments without a register. */
static fp_status skip_to(fp_part_sum *sum, int part)
{
	fp_status status = FP_OK;
	for (; status == FP_OK && sum->next < part; sum->next++)
		status = fp_part_sum_push(sum, (fp_part_fragment){sum->next, sum->next + 1, -1});
	return status;
}

fp_status fp_part_sum_skip(fp_part_sum *sum)
{
	return skip_to(sum, sum->share->end);
}

fp_status fp_part_sum_begin(fp_part_sum *sum, int part, int *which)
{
	fp_status status;
	FP_REQUIRE(sum->be, part >= sum->next && part < sum->share->end && sum->used[part]);
	FP_TRY(skip_to(sum, part));
	FP_TRY(fp_part_sum_take_register(sum, which));
cleanup:
	return status;
}

fp_status fp_part_sum_end(fp_part_sum *sum)
{
	int part = sum->next++, which;
	fp_status status;
	FP_TRY(fp_part_sum_take_register(sum, &which)); /* the same as at its begin */
	FP_TRY(fp_part_sum_push(sum, (fp_part_fragment){part, part + 1, which}));
cleanup:
	return status;
}

static bool any_used(const fp_part_sum *sum, int begin, int end)
{
	while (begin < end && !sum->used[begin])
		begin++;
	return begin < end;
}

/* Sends the fragment [begin, end), which is on the stack. Fragments may leave in any order. */
static fp_status send_fragment(fp_part_sum *sum, int begin, int end, int to)
{
	int at = 0;
	fp_status status = FP_OK;
	while (at < sum->depth && sum->stack[at].begin != begin)
		at++;
	FP_REQUIRE(sum->be, at < sum->depth && sum->stack[at].end == end);
	if (sum->stack[at].which >= 0)
		FP_TRY(fp_addends_send(&sum->registers[sum->stack[at].which], sum->share, sum->be, to));
	for (sum->depth--; at < sum->depth; at++)
		sum->stack[at] = sum->stack[at + 1];
cleanup:
	return status;
}

/* Receives the fragment and adds it to the one before, which is the last that this rank has then: it ends where the
 * rank's own parts end, or what came from later ranks. */
static fp_status receive_fragment(fp_part_sum *sum, int begin, int end, int from)
{
	fp_part_fragment fragment = {begin, end, -1};
	fp_status status = FP_OK;
	FP_REQUIRE(sum->be, sum->depth > 0 && sum->stack[sum->depth - 1].end == begin);
	if (any_used(sum, begin, end)) {
		FP_TRY(fp_part_sum_take_register(sum, &fragment.which));
		FP_TRY(fp_addends_receive(&sum->registers[fragment.which], sum->share, sum->be, from));
	}
	FP_TRY(fp_part_sum_push(sum, fragment));
cleanup:
	return status;
}

/* Afterwards the owner of part `begin` has the sum of the tree's parts [begin, end). All ranks make the same calls. */
static fp_status reduce(fp_part_sum *sum, int begin, int end)
{
	const fp_share *share = sum->share;
	int me = fp_share_rank(share), middle = division(begin, end);
	int left = fp_share_owner(share, begin), right = fp_share_owner(share, middle);
	fp_status status = FP_OK;
	if (left == fp_share_owner(share, end - 1)) /* added when its last part was */
		return FP_OK;
	FP_TRY(reduce(sum, begin, middle));
	FP_TRY(reduce(sum, middle, end));
	if (me == right && me != left)
		FP_TRY(send_fragment(sum, middle, end, left));
	else if (me == left && me != right)
		FP_TRY(receive_fragment(sum, middle, end, right));
cleanup:
	return status;
}

fp_status fp_part_sum_finish(fp_part_sum *sum, bool everywhere)
{
	const fp_share *share = sum->share;
	int which;
	fp_status status;
	FP_TRY(fp_part_sum_skip(sum));
	if (fp_share_ranks(share) > 1)
		FP_TRY(reduce(sum, 0, share->parts));
	sum->depth = 0;
	FP_TRY(fp_part_sum_take_register(sum, &which));
	if (everywhere && fp_share_ranks(share) > 1)
		FP_TRY(move_list(&sum->registers[0], share, sum->be, FP_BROADCASTS, 0));
cleanup:
	return status;
}

int fp_part_sum_registers(const fp_share *share, int64_t used)
{
	fp_part_sum sum = {.share = share};
	int most = 1;
	for (int part = share->begin; part < share->end; part++) {
		most = most > sum.depth + 1 ? most : sum.depth + 1;
		sum.stack[sum.depth++] = (fp_part_fragment){part, part + 1, -1};
		while (sum.depth > 1 && joins(sum.stack[sum.depth - 2], sum.stack[sum.depth - 1]))
			(void)join(&sum);
	}
	if (fp_share_ranks(share) > 1 && share->end > share->begin && most < 2)
		most = 2; /* for what another rank sends */
	return (int)fp_smaller(most, fp_larger(used, 1));
}
