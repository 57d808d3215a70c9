/* SPDX-License-Identifier: Apache-2.0 */
/* Memory limits of control groups, read from folders laid out like the kernel's. */
#include "support.h"

#include "base/control_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Writes root/path and creates its folders. */
static void put(const char *root, const char *path, const char *text)
{
	char whole[4200];
	snprintf(whole, sizeof whole, "%s/%s", root, path);
	for (char *at = whole + strlen(root) + 1; (at = strchr(at, '/')); at++) {
		*at = '\0';
		mkdir(whole, 0777);
		*at = '/';
	}
	FILE *file = fopen(whole, "w");
	assert_non_null(file);
	fputs(text, file);
	fclose(file);
}

static void without_groups_there_is_no_limit(void **unused)
{
	(void)unused;
	char *root = temporary_folder();
	int64_t limit, left;
	assert_false(fp_control_group_memory(root, &limit, &left));
	put(root, "proc/self/cgroup", "0::/\n");
	put(root, "sys/fs/cgroup/memory.max", "max\n");
	put(root, "sys/fs/cgroup/memory.current", "1000\n");
	assert_false(fp_control_group_memory(root, &limit, &left));
	put(root, "proc/self/cgroup", "nonsense\n4:\n\n");
	assert_false(fp_control_group_memory(root, &limit, &left));
	remove_folder(root);
	free(root);
}

static void a_container_sees_its_limit_at_the_root(void **unused)
{
	(void)unused;
	char *root = temporary_folder();
	int64_t limit, left;
	put(root, "proc/self/cgroup", "0::/\n");
	put(root, "sys/fs/cgroup/memory.max", "1000000\n");
	put(root, "sys/fs/cgroup/memory.current", "700000\n");
	put(root, "sys/fs/cgroup/memory.stat", "anon 100\ninactive_file 250000\nactive_file 7\n");
	assert_true(fp_control_group_memory(root, &limit, &left));
	assert_int_equal(limit, 1000000);
	assert_int_equal(left, 550000);
	put(root, "sys/fs/cgroup/memory.current", "2000000\n"); /* a limit that was lowered */
	assert_true(fp_control_group_memory(root, &limit, &left));
	assert_int_equal(left, 0);
	remove_folder(root);
	free(root);
}

/* As with Slurm or systemd: the limit of the group and those of its parents. */
static void the_tightest_group_counts(void **unused)
{
	(void)unused;
	static const struct {
		const char *self, *folder, *limit, *used;
	} versions[] = {
		{"0::/job/step\n", "sys/fs/cgroup", "memory.max", "memory.current"},
		{"9:cpu,cpuacct:/x\n4:hugetlb,memory:/job/step\n0::/\n", "sys/fs/cgroup/memory", "memory.limit_in_bytes",
		 "memory.usage_in_bytes"},
	};
	for (int v = 0; v < 2; v++) {
		char *root = temporary_folder();
		char path[256];
		int64_t limit, left;
		static const struct {
			const char *group, *limit, *used;
		} groups[] = {
			{"", "9223372036854771712\n", "900\n"}, {"/job", "5000\n", "4000\n"}, {"/job/step", "3000\n", "500\n"}};
		put(root, "proc/self/cgroup", versions[v].self);
		for (int g = 0; g < 3; g++) {
			snprintf(path, sizeof path, "%s%s/%s", versions[v].folder, groups[g].group, versions[v].limit);
			put(root, path, groups[g].limit);
			snprintf(path, sizeof path, "%s%s/%s", versions[v].folder, groups[g].group, versions[v].used);
			put(root, path, groups[g].used);
		}
		assert_true(fp_control_group_memory(root, &limit, &left));
		assert_int_equal(limit, 5000);
		assert_int_equal(left, 1000);
		remove_folder(root);
		free(root);
	}
}

/* In a container the path is the host's, but its folder is mounted further down: the visible limits count. */
static void a_path_that_is_not_there_is_walked_up(void **unused)
{
	(void)unused;
	char *root = temporary_folder();
	int64_t limit, left;
	put(root, "proc/self/cgroup", "4:memory:/docker/0123\n");
	put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "2000\n");
	put(root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "500\n");
	assert_true(fp_control_group_memory(root, &limit, &left));
	assert_int_equal(limit, 2000);
	assert_int_equal(left, 1500);
	remove_folder(root);
	free(root);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_groups_there_is_no_limit),
		cmocka_unit_test(a_container_sees_its_limit_at_the_root),
		cmocka_unit_test(the_tightest_group_counts),
		cmocka_unit_test(a_path_that_is_not_there_is_walked_up),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
