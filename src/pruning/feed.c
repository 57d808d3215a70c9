/* SPDX-License-Identifier: Apache-2.0 */
#include "pruning/feed.h"

fp_feed fp_feed_of(const fp_settings *settings)
{
	return fp_method_of(settings)->feed(settings);
}

bool fp_feed_needs_both(fp_feed feed)
{
	return feed != FP_FEED_NONE;
}

bool fp_feed_is_corrected(fp_feed feed)
{
	return feed == FP_FEED_INTRA || feed == FP_FEED_CROSS;
}

bool fp_feed_chains_layers(fp_feed feed)
{
	return feed == FP_FEED_SEQUENTIAL || feed == FP_FEED_CROSS;
}

bool fp_group_is_corrected(const fp_settings *settings, int group)
{
	/* with FP_FEED_INTRA both streams are equal until the layer's first group is pruned */
	fp_feed feed = fp_feed_of(settings);
	return feed == FP_FEED_CROSS || (feed == FP_FEED_INTRA && group > 0);
}

bool fp_group_repairs(const fp_settings *settings, int group)
{
	if (group == fp_role_group(FP_DOWN))
		return settings->residual > 0 && fp_group_is_corrected(settings, group);
	return group == fp_role_group(FP_OUTPUT) && settings->residual_output > 0 && fp_feed_of(settings) == FP_FEED_CROSS;
}
