/* SPDX-License-Identifier: Apache-2.0 */
/* module_stub.c: a module for test_module_file.c. It says that it is of build FP_STUB_BUILD, of its own build (when
 * base/build_identity.c is linked to it), or nothing. */
#define EXPORT __attribute__((visibility("default")))

EXPORT int fp_stub_entry(void);

int fp_stub_entry(void)
{
	return 42;
}

#ifdef FP_STUB_BUILD
EXPORT const char *fp_module_build_id(void);

const char *fp_module_build_id(void)
{
	return FP_STUB_BUILD;
}
#endif
