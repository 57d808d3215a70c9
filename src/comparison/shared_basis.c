/* SPDX-License-Identifier: Apache-2.0 */
#include "comparison/shared_basis.h"

#include "base/digest.h"
#include "base/number_text.h"

static void forget(fp_shared_basis *shared)
{
	if (shared->model)
		fp_model_set_basis(shared->model, NULL);
	fp_basis_free(shared->basis);
	shared->basis = NULL;
}

fp_status fp_shared_basis_take(fp_shared_basis *shared, fp_prune_task *task)
{
	const fp_settings *s = task->settings;
	char numbers[128];
	fp_status status;
	FP_TRY(fp_basis_choose(&shared->choice, task->model, s, task->windows->count > 0));
	if (!shared->choice.local)
		goto cleanup;
	if (!shared->model)
		FP_TRY(fp_model_open(&shared->model, task->be, fp_model_checkpoint(task->model)));
	fp_format(numbers, sizeof numbers, "%lld %lld %lld %g", (long long)s->samples, (long long)s->seed,
			  (long long)s->basis_steps, s->basis_rate);
	const char *const texts[] = {
		fp_basis_word(&shared->choice), s->pattern, s->only, s->skip, s->layers, s->sampler, s->precision, numbers};
	uint64_t key = FP_DIGEST_START;
	for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
		key = fp_digest_text(key, texts[i]);
	if (key != shared->key)
		forget(shared);
	shared->key = key;
	shared->known = shared->basis != NULL;
	task->model = shared->model;
	task->choice = &shared->choice;
	task->basis = &shared->basis;
	task->kept = NULL; /* statistics of the checkpoint's own basis */
cleanup:
	return status;
}

void fp_shared_basis_report(fp_shared_basis *shared, fp_basis_gain *gain)
{
	if (!shared->choice.local)
		return;
	if (shared->known) {
		*gain = shared->gain;
		gain->seconds = 0;
	}
	shared->gain = *gain;
}

void fp_shared_basis_free(fp_shared_basis *shared)
{
	forget(shared);
	fp_model_close(shared->model);
	shared->model = NULL;
}
