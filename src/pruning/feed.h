/* SPDX-License-Identifier: Apache-2.0 */
/* feed.h: which hidden states an operator's inputs are computed from, and which earlier errors its target repairs. */
#ifndef FP_PRUNING_FEED_H
#define FP_PRUNING_FEED_H

#include "model/layer.h"
#include "solver/method.h"

/* By the settings' method. */
fp_feed fp_feed_of(const fp_settings *settings);
/* True when the layer needs a dense and a pruned stream. */
bool fp_feed_needs_both(fp_feed feed);
/* True when X* runs through the pruned operators of the layer itself. */
bool fp_feed_is_corrected(fp_feed feed);
/* True when a pruned layer's output is the next layer's input; otherwise layers are independent of each other. */
bool fp_feed_chains_layers(fp_feed feed);

/* True when the group's inputs X and X* differ: its operators repair the errors of what was pruned before them. */
bool fp_group_is_corrected(const fp_settings *settings, int group);
/* True when the targets of the group's operators may include the error in the residual stream. */
bool fp_group_repairs(const fp_settings *settings, int group);

#endif
