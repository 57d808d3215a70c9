/* SPDX-License-Identifier: Apache-2.0 */
#include "run/model_basis.h"

#include "base/file.h"
#include "base/memory.h"
#include "basis/basis_check.h"
#include "basis/basis_file.h"
#include "run/run_output.h"

#include <stdlib.h>
#include <string.h>

static const double MOST_GROWTH = 0.15; /* of a checkpoint, by a head of its own, that "auto" accepts */

static int64_t checkpoint_bytes(const fp_checkpoint *checkpoint)
{
	int64_t bytes = 0;
	for (int64_t i = 0; i < fp_checkpoint_tensor_count(checkpoint); i++)
		bytes += fp_checkpoint_tensor(checkpoint, i)->bytes;
	return bytes;
}

/* Decides whether the residual stream is turned. */
static void choose_stream(fp_basis_choice *out, fp_model *model, const fp_settings *settings)
{
	fp_context *ctx = fp_model_backend(model)->ctx;
	const fp_checkpoint *checkpoint = fp_model_checkpoint(model);
	bool full = fp_is(settings->basis, "full"), tied = fp_model_get_config(model)->tied;
	bool grows = tied && !fp_checkpoint_find(checkpoint, out->name); /* or the embedding is stored twice */
	double growth = grows ? (double)out->head.bytes / (double)checkpoint_bytes(checkpoint) : 0;
	if (out->freedom.stream)
		fp_log(ctx, full ? FP_LOG_WARNING : FP_LOG_INFO, "basis: %s; full is not possible with this model: %s",
			   fp_basis_word(out), out->freedom.stream);
	else if (!full && growth > MOST_GROWTH)
		fp_log(ctx, FP_LOG_INFO,
			   "basis: %s; --basis full would prune better, but the head could no longer be the embedding: "
			   "%.1f MiB more, %.0f%% of the checkpoint",
			   fp_basis_word(out), (double)out->head.bytes / 1048576.0, 100 * growth);
	else
		out->stream = true;
	out->unties = out->stream && tied;
}

fp_status fp_basis_choose(fp_basis_choice *out, fp_model *model, const fp_settings *settings, bool calibrated)
{
	fp_backend *be = fp_model_backend(model);
	bool automatic = fp_is(settings->basis, "auto");
	double sparsity;
	int64_t kept, group;
	fp_status status;
	*out = (fp_basis_choice){0};
	FP_TRY(fp_parse_sparsity(be->ctx, settings->pattern, &sparsity, &kept, &group));
	bool useful = calibrated && (sparsity > 0 || settings->pattern_rules[0]); /* where zeros are placed */
	if (fp_is(settings->basis, "none") || (automatic && !useful))
		return FP_OK;
	if (!calibrated)
		FP_TRY(fp_fail(be->ctx, FP_ERROR_USAGE,
					   "--basis %s is learned on calibration text: --calibration FILE is needed", settings->basis));
	if (!fp_backend_can(be, FP_CAN_DIFFERENTIATE)) {
		if (!automatic)
			FP_TRY(fp_fail(be->ctx, FP_ERROR_USAGE, "--basis %s needs gradients, which the device %s does not have",
						   settings->basis, be->name));
		return FP_OK;
	}
	FP_TRY(fp_basis_freedom_of(&out->freedom, model));
	out->local = out->freedom.value || out->freedom.query || group > 0; /* N:M: the inner channels are reordered */
	out->head = fp_model_untied_head(model, out->name);
	if (!fp_is(settings->basis, "local"))
		choose_stream(out, model, settings);
	else if (!out->local)
		fp_log(be->ctx, FP_LOG_WARNING,
			   "basis: none; the heads of this model, which are made of latents, are not turned");
	out->local = out->local || out->stream;
cleanup:
	return status;
}

const char *fp_basis_word(const fp_basis_choice *choice)
{
	return choice->stream ? "full" : choice->local ? "local" : "none";
}

char *fp_basis_config(const fp_writer *writer)
{
	json_t *entries = json_pack("{s:b}", "tie_word_embeddings", 0);
	char *text = entries ? fp_writer_config(writer, entries) : NULL;
	json_decref(entries);
	return text;
}

/* Ranks that share windows learn the basis together; otherwise rank 0 learns it, in the same order of sums. */
static bool learns_together(const fp_prune_task *task)
{
	fp_share share = fp_prune_share(task);
	return fp_share_is_divided(&share);
}

static bool leads(const fp_prune_task *task)
{
	return !task->comm || task->comm->rank == 0;
}

/* The bytes that learning may use: the setting `memory`, or what is free. */
static fp_status memory_limit(const fp_prune_task *task, int64_t *out)
{
	int64_t available, total;
	fp_status status;
	FP_TRY(fp_parse_size(task->ctx, task->settings->memory, out));
	if (*out == 0) {
		FP_TRY(task->be->memory->available(task->be, &available, &total));
		*out = available / 10 * 9;
	}
	if (task->comm && learns_together(task))
		FP_TRY(task->comm->ops->minimum(task->comm, out));
cleanup:
	return status;
}

static fp_basis_task learning_task(const fp_prune_task *task)
{
	return (fp_basis_task){.be = task->be,
						   .ctx = task->ctx,
						   .model = task->model,
						   .settings = task->settings,
						   .windows = task->windows,
						   .freedom = task->choice->freedom,
						   .stream = task->choice->stream,
						   .share = fp_basis_share(learns_together(task) ? task->comm : NULL)};
}

int64_t fp_basis_bytes(const fp_prune_task *task)
{
	const fp_model_config *c = fp_model_get_config(task->model);
	if (!task->choice || !task->choice->local)
		return 0;
	int64_t heads = c->layers * c->kv_heads * c->head_dim * c->head_dim;
	int64_t turned = (task->choice->freedom.value ? heads : 0) + (task->choice->freedom.query ? heads : 0);
	return (turned + (task->choice->stream ? c->hidden * c->hidden : 0)) * (int64_t)sizeof(float);
}

int64_t fp_basis_learning_bytes(const fp_prune_task *task)
{
	if (!task->choice || !task->choice->local)
		return 0;
	fp_basis_task learning = learning_task(task);
	return fp_learn_basis_bytes(&learning);
}

double fp_basis_flops(const fp_prune_task *task, int64_t weights)
{
	if (!task->choice || !task->choice->local)
		return 0;
	fp_basis_task learning = learning_task(task);
	return fp_learn_basis_flops(&learning, weights);
}

/* *out ← for each layer and operator, whether the operator is pruned */
static fp_status list_pruned(bool **out, const fp_prune_task *task)
{
	int64_t layers = fp_model_get_config(task->model)->layers, first, end;
	fp_selection *selection = NULL;
	fp_status status;
	FP_TRY(fp_parse_range(task->ctx, task->settings->layers, layers, &first, &end));
	FP_TRY(fp_selection_new(&selection, task->model, task->settings));
	int operators = fp_model_operators(task->model);
	FP_TRY(FP_NEW(task->ctx, out, layers * operators));
	for (int64_t layer = first; layer < end; layer++)
		for (int i = 0; i < operators; i++)
			(*out)[layer * operators + i] = fp_selection_has(selection, layer, i);
cleanup:
	fp_selection_free(selection);
	return status;
}

static fp_status learn(const fp_prune_task *task, fp_basis_gain *gain)
{
	const fp_basis_choice *choice = task->choice;
	fp_basis_task learning = learning_task(task);
	fp_pattern *pattern = &learning.pattern;
	bool *pruned = NULL;
	double kl;
	fp_status status;
	FP_TRY(list_pruned(&pruned, task));
	learning.pruned = pruned;
	FP_TRY(fp_parse_sparsity(task->ctx, task->settings->pattern, &pattern->sparsity, &pattern->kept, &pattern->group));
	FP_TRY(memory_limit(task, &learning.memory));
	FP_TRY(fp_learn_basis(task->basis, &learning, gain));
	if (!leads(task))
		goto cleanup;
	FP_TRY(fp_basis_check(task->model, *task->basis, task->windows, &kl));
	if (choice->stream)
		fp_log(task->ctx, FP_LOG_INFO,
			   "basis: full: what the pattern removes falls from %.2f%% to %.2f%% of the squared weights; the model "
			   "is the same to a divergence of %.1g; %.1f s",
			   100 * gain->stream_before, 100 * gain->stream_after, kl, gain->seconds);
	else if (!choice->freedom.value)
		fp_log(task->ctx, FP_LOG_INFO,
			   "basis: local: inner channels in another order; the model is the same to a divergence of %.1g; %.1f s",
			   kl, gain->seconds);
	else
		fp_log(task->ctx, FP_LOG_INFO,
			   "basis: local: what the pattern removes of attention's operators falls from %.2f%% to %.2f%% of their "
			   "squared weights; the model is the same to a divergence of %.1g; %.1f s",
			   100 * gain->local_before, 100 * gain->local_after, kl, gain->seconds);
cleanup:
	fp_free(pruned);
	return status;
}

static fp_status restore(const fp_prune_task *task, const char *path, fp_basis_gain *gain)
{
	const fp_basis_choice *choice = task->choice;
	return fp_basis_restore(task->basis, path, task->model, &choice->freedom, choice->stream, gain);
}

/* Rank 0 restores or learns the basis and writes it into the folder of the run; the others, even if they have learned it
 * too, take that one. */
static fp_status prepare_with_ranks(const fp_prune_task *task, const char *path, fp_basis_gain *gain)
{
	fp_comm *comm = task->comm;
	int64_t missing = 0;
	fp_status status = FP_OK;
	if (leads(task))
		status = restore(task, path, gain);
	FP_TRY(fp_comm_agree(comm, status));
	missing = leads(task) && !*task->basis;
	FP_TRY(comm->ops->broadcast(comm, 0, &missing, sizeof missing));
	if (missing && learns_together(task))
		FP_TRY(learn(task, gain)); /* a rank that fails ends, and the launcher ends the others */
	else if (missing && leads(task))
		status = learn(task, gain);
	if (status == FP_OK && missing && leads(task))
		status = fp_basis_save(path, *task->basis, task->model, gain);
	FP_TRY(fp_comm_agree(comm, status));
	if (leads(task))
		goto cleanup;
	fp_basis_free(*task->basis);
	*task->basis = NULL;
	FP_TRY(restore(task, path, gain));
cleanup:
	return status;
}

fp_status fp_basis_prepare(const fp_prune_task *task, fp_basis_gain *gain)
{
	char *path = NULL;
	fp_status status = FP_OK;
	if (!task->choice || !task->choice->local || *task->basis)
		goto cleanup;
	if (task->journal)
		FP_TRY(fp_join_path(&path, task->ctx, fp_writer_folder(task->writer), "basis"));
	if (task->comm && task->comm->size > 1)
		FP_TRY(prepare_with_ranks(task, path, gain));
	else if (path)
		FP_TRY(restore(task, path, gain));
	if (!*task->basis && leads(task)) {
		FP_TRY(learn(task, gain));
		if (path)
			FP_TRY(fp_basis_save(path, *task->basis, task->model, gain));
	}
	if (!*task->basis)
		FP_TRY(fp_fail(task->ctx, FP_ERROR_INPUT, "%s: cannot be read, which rank 0 has just written", path));
cleanup:
	fp_free(path);
	if (status == FP_OK && task->basis)
		fp_model_set_basis(task->model, *task->basis);
	return status;
}

/* A layer that is not pruned. */
static fp_status write_layer(const fp_prune_task *task, fp_run_output *output, int64_t index)
{
	fp_layer_output to = fp_run_output_callbacks(output);
	fp_layer *layer = NULL;
	fp_status status;
	fp_run_output_begin_layer(output);
	FP_TRY(fp_layer_load(&layer, task->model, index));
	for (int i = 0; i < fp_model_operators(task->model); i++)
		FP_TRY(fp_layer_give_operator(layer, i, to.bias_done, to.data));
	FP_TRY(fp_layer_give_vectors(layer, to.bias_done, to.data));
	FP_TRY(fp_run_output_end_layer(output));
cleanup:
	fp_layer_free(layer);
	return status;
}

fp_status fp_basis_write_rest(const fp_prune_task *task, fp_run_output *output, const fp_selection *selection)
{
	const fp_model_config *c = fp_model_get_config(task->model);
	fp_layer_output to = fp_run_output_callbacks(output);
	char *config = NULL;
	fp_status status = FP_OK;
	if (!task->writer || !task->choice || !task->choice->local)
		return FP_OK;
	for (int64_t i = 0; i < c->layers; i++)
		if (!fp_selection_has_layer(selection, i))
			FP_TRY(write_layer(task, output, i));
	FP_TRY(fp_model_give_outer(task->model, &task->choice->head, to.bias_done, to.data));
	if (task->choice->stream && (c->tied || c->overrides_tie)) { /* older programs would drop the head */
		config = fp_basis_config(task->writer);
		if (!config)
			FP_TRY(fp_fail(task->ctx, FP_ERROR_MEMORY, "out of memory for config.json"));
		FP_TRY(fp_writer_add_file(task->writer, "config.json", config, (int64_t)strlen(config)));
	}
cleanup:
	free(config);
	return status;
}
