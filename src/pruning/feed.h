/* SPDX-License-Identifier: Apache-2.0 */
/* feed.h: which hidden states an operator's inputs are computed from, and which earlier errors its target corrects. */
#ifndef FP_PRUNING_FEED_H
#define FP_PRUNING_FEED_H

#include "model/layer.h"
#include "solver/method.h"
#include "statistics/statistics.h"

/* The feed of the settings' method. */
fp_feed fp_feed_of(const fp_settings *settings);
/* True if a layer needs a dense and a pruned stream. */
bool fp_feed_needs_both(fp_feed feed);
/* True if X* has passed through the pruned operators of the layer itself. */
bool fp_feed_is_corrected(fp_feed feed);
/* True if a pruned layer's output is the next layer's input; otherwise layers are independent of each other. */
bool fp_feed_chains_layers(fp_feed feed);

/* True if the group's inputs X and X* differ: its operators correct the errors of those pruned before them. */
bool fp_group_is_corrected(const fp_settings *settings, int group);
/* True if the targets of the group's operators include the residual stream's error E = h − h*. */
bool fp_group_repairs(const fp_model *model, const fp_settings *settings, int group);
/* What to accumulate for the group's operators that read every token (expert −1) or those of an expert, with at most
 * `batch` tokens at a time. `only` gets a shape but no buffer; inputs 0: there is no such operator. */
fp_statistics_plan fp_group_statistics_plan(const fp_model *model, const fp_settings *settings, int64_t layer,
											int group, int64_t expert, int64_t batch);

#endif
