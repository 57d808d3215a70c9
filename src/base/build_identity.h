/* SPDX-License-Identifier: Apache-2.0 */
/* build_identity.h: which build of the program this is. cmake/BuildIdentity.cmake computes the values. */
#ifndef FP_BASE_BUILD_IDENTITY_H
#define FP_BASE_BUILD_IDENTITY_H

/* A digest of all sources, as 16 hexadecimal digits. Two builds have the same one only if their sources are equal. */
const char *fp_build_id(void);
/* The git commit of the sources, with "-dirty" behind it if files had changed since; "" when it is not known. */
const char *fp_build_commit(void);

#endif
