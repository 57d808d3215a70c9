/* SPDX-License-Identifier: Apache-2.0 */
/* build_identity.c: which build of the program this is. cmake/BuildIdentity.cmake computes the values. */
#include <fistapruner/fistapruner.h>

#include "base/build_identity_values.h" /* generated */

const char *fp_build_id(void)
{
	return FP_BUILD_ID;
}

const char *fp_build_commit(void)
{
	return FP_BUILD_COMMIT;
}

#ifdef FP_IS_MODULE /* the program compares this with its own identity before it calls the module (module_file.c) */
FP_API const char *fp_module_build_id(void);

const char *fp_module_build_id(void)
{
	return FP_BUILD_ID;
}
#endif
