/* SPDX-License-Identifier: Apache-2.0 */
/* basis_fixture.h: random orthogonal matrices and random bases of the model fixtures, and how far a matrix is from what a
 * basis needs. */
#ifndef FP_TESTS_BASIS_FIXTURE_H
#define FP_TESTS_BASIS_FIXTURE_H

#include "model_fixture.h"

#include "basis/learn_basis.h"

/* A copy of a matrix on the host, row by row. The caller frees it with free(). */
float *matrix_floats(model_fixture *f, fp_matrix matrix);
void set_matrix(model_fixture *f, fp_matrix matrix, const float *values);

/* Q ← a random orthogonal matrix of order n; with keep_ones, one with Q1 = 1. */
void random_orthogonal(float *Q, int64_t n, bool keep_ones, uint64_t *seed);

/* A random basis: all that the model's freedom permits, with the stream if it permits that too, and a random order of the
 * inner channels. Freed with fp_basis_free(). */
fp_basis *random_basis(model_fixture *f, const fp_basis_freedom *freedom, uint64_t seed);

/* The largest entry of |MᵀM − I| over all blocks of M.cols rows. */
double orthogonality_error(model_fixture *f, fp_matrix M);
/* The largest entry of |R1 − 1|. */
double ones_error(model_fixture *f, fp_matrix R);

/* −log p of every token at every position: rows × vocabulary. The caller frees it with free(). */
float *all_losses(model_fixture *f, const fp_windows *windows);
double largest_difference(const float *a, const float *b, int64_t count);
/* Sets `bytes` bytes of element `index` of a tensor of a checkpoint folder to zero, or to NaN. */
void spoil_tensor(const char *folder, const char *tensor, int64_t index, bool nan);

/* A task with a pattern such as "2:4"; steps: of Adam. The settings are the caller's. */
fp_basis_task basis_task(model_fixture *f, const fp_settings *settings, const fp_windows *windows, bool stream);

#endif
