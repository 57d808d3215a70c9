/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cpu_simd_loops.h: the loops of cpu_simd.h, included by cpu_simd.c once per instruction set with
 *   LOOP(name)   the name of a function in this instruction set
 *   TARGET       its attribute
 *   LOOPS_NAME   the name of the table
 * They are plain C that the compiler vectorises. `omp simd` allows reordered sums in that one loop, which otherwise
 * needs -ffast-math, and promises that spans do not overlap in part.
 */

#define LOOP_INLINE static inline __attribute__((always_inline)) TARGET

/*
 * exp(x) to about 2 ulp, with x = n·ln 2 + r and |r| ≤ ln 2 / 2: a polynomial in r, times 2ⁿ. Adding 1.5·2²³ leaves
 * the integer n in the low bits. Below −87.3 the result is 0, above 88.7 it stays finite, and NaN stays NaN.
 */
LOOP_INLINE float LOOP(exponential)(float x)
{
	const float magic = 12582912.0f;
	float clamped = x > 88.7f ? 88.7f : x;
	clamped = clamped < -87.3f ? -87.3f : clamped;
	float shifted = clamped * 1.44269504f + magic;
	float n = shifted - magic;
	float r = clamped - n * 0.693359375f;
	r = r + n * 2.12194440e-4f;
	float p = 1.9875691500e-4f;
	p = p * r + 1.3981999507e-3f;
	p = p * r + 8.3334519073e-3f;
	p = p * r + 4.1665795894e-2f;
	p = p * r + 1.6666665459e-1f;
	p = p * r + 5.0000001201e-1f;
	p = p * r * r + r + 1.0f;
	union {
		float f;
		uint32_t u;
	} power = {.f = shifted}, result = {.f = p};
	result.u += power.u << 23;
	float value = x < -87.3f ? 0.0f : result.f;
	return x != x ? x : value;
}

/* --- softmax ---------------------------------------------------------------------------------------------------- */

/* As integers: their maximum needs no test for NaN, and every compiler vectorises it. */
TARGET static float LOOP(maximum)(const float *x, int64_t n)
{
	int32_t largest = ordered(bits_of(-INFINITY));
#pragma omp simd reduction(max : largest)
	for (int64_t i = 0; i < n; i++) {
		int32_t key = ordered(bits_of(x[i]));
		largest = key > largest ? key : largest;
	}
	return float_of(ordered(largest));
}

/* Pieces this short are summed in float with little error; the pieces are added in double. */
#define LOOP_PIECE 512

TARGET static double LOOP(exp_sum)(const float *x, int64_t n, float shift)
{
	double total = 0;
	for (int64_t begin = 0; begin < n; begin += LOOP_PIECE) {
		int64_t end = n - begin < LOOP_PIECE ? n : begin + LOOP_PIECE;
		float sum = 0;
#pragma omp simd reduction(+ : sum)
		for (int64_t i = begin; i < end; i++)
			sum += LOOP(exponential)(x[i] - shift);
		total += (double)sum;
	}
	return total;
}

TARGET static double LOOP(exp_store)(float *x, int64_t n, float shift)
{
	double total = 0;
	for (int64_t begin = 0; begin < n; begin += LOOP_PIECE) {
		int64_t end = n - begin < LOOP_PIECE ? n : begin + LOOP_PIECE;
		float sum = 0;
#pragma omp simd reduction(+ : sum)
		for (int64_t i = begin; i < end; i++) {
			float value = LOOP(exponential)(x[i] - shift);
			x[i] = value;
			sum += value;
		}
		total += (double)sum;
	}
	return total;
}

TARGET static double LOOP(exp_dot)(const float *x, const float *y, int64_t n, float shift, double *sum)
{
	double total = 0, product = 0;
#pragma omp simd reduction(+ : total, product)
	for (int64_t i = 0; i < n; i++) {
		double value = (double)LOOP(exponential)(x[i] - shift);
		total += value;
		product += value * ((double)x[i] - (double)y[i]);
	}
	*sum = total;
	return product;
}

/* --- linear ----------------------------------------------------------------------------------------------------- */

TARGET static void LOOP(scale)(float *y, const float *x, int64_t n, float factor)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		y[i] = factor * x[i];
}

TARGET static void LOOP(axpby)(float *y, const float *x, int64_t n, float alpha, float beta)
{
	if (beta == 0.0f) {
		LOOP(scale)(y, x, n, alpha);
		return;
	}
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		y[i] = alpha * x[i] + beta * y[i];
}

TARGET static void LOOP(multiply)(float *y, const float *x, const float *s, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		y[i] = s[i] * x[i];
}

TARGET static void LOOP(add)(float *y, const float *x, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		y[i] += x[i];
}

/* As integers, like maximum(): the bits of |x| are ordered like |x|. */
TARGET static float LOOP(max_abs)(const float *x, int64_t n)
{
	int32_t largest = 0;
#pragma omp simd reduction(max : largest)
	for (int64_t i = 0; i < n; i++) {
		int32_t key = bits_of(x[i]) & 0x7fffffff;
		largest = key > largest ? key : largest;
	}
	return float_of(largest);
}

TARGET static double LOOP(sum)(const float *x, int64_t n)
{
	double total = 0;
#pragma omp simd reduction(+ : total)
	for (int64_t i = 0; i < n; i++)
		total += (double)x[i];
	return total;
}

TARGET static double LOOP(squares)(const float *x, int64_t n, double centre)
{
	double total = 0;
#pragma omp simd reduction(+ : total)
	for (int64_t i = 0; i < n; i++) {
		double d = (double)x[i] - centre;
		total += d * d;
	}
	return total;
}

TARGET static double LOOP(dot)(const float *x, const float *y, int64_t n)
{
	double total = 0;
#pragma omp simd reduction(+ : total)
	for (int64_t i = 0; i < n; i++)
		total += (double)x[i] * (double)y[i];
	return total;
}

TARGET static bool LOOP(finite)(const float *x, int64_t n)
{
	uint32_t bad = 0;
#pragma omp simd reduction(| : bad)
	for (int64_t i = 0; i < n; i++) {
		union {
			float f;
			uint32_t u;
		} bits = {.f = x[i]};
		bad |= (uint32_t)((bits.u & 0x7f800000u) == 0x7f800000u);
	}
	return bad == 0;
}

/* --- transformer ------------------------------------------------------------------------------------------------ */

TARGET static void LOOP(normalise)(float *y, const float *x, int64_t n, float centre, float factor, const float *weight,
								   const float *bias)
{
	if (weight && bias) {
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			y[i] = (x[i] - centre) * factor * weight[i] + bias[i];
	} else if (weight) {
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			y[i] = (x[i] - centre) * factor * weight[i];
	} else {
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			y[i] = (x[i] - centre) * factor;
		if (bias)
			LOOP(add)(y, bias, n);
	}
}

LOOP_INLINE float LOOP(relu)(float x)
{
	return x < 0.0f ? 0.0f : x;
}

LOOP_INLINE float LOOP(silu)(float x)
{
	return x / (1.0f + LOOP(exponential)(-x));
}

/* ½x(1 + tanh u) = x / (1 + exp(−2u)), u = √(2/π)(x + 0.044715 x³) */
LOOP_INLINE float LOOP(gelu_tanh)(float x)
{
	float u = 0.7978845608f * (x + 0.044715f * x * x * x);
	return x / (1.0f + LOOP(exponential)(-2.0f * u));
}

LOOP_INLINE float LOOP(gelu)(float x)
{
	return 0.5f * x * (1.0f + erff(x * 0.70710678118f));
}

/* The branches differ after macro expansion. NOLINTBEGIN(bugprone-branch-clone) */
TARGET static void LOOP(activate)(fp_activation kind, float *y, const float *x, int64_t n)
{
	switch (kind) {
	case FP_RELU:
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			y[i] = LOOP(relu)(x[i]);
		return;
	case FP_SILU:
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			y[i] = LOOP(silu)(x[i]);
		return;
	case FP_GELU_TANH:
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			y[i] = LOOP(gelu_tanh)(x[i]);
		return;
	case FP_GELU:
		for (int64_t i = 0; i < n; i++)
			y[i] = LOOP(gelu)(x[i]);
		return;
	}
}

TARGET static void LOOP(activate_gated)(fp_activation kind, float *y, const float *g, const float *u, int64_t n)
{
	switch (kind) {
	case FP_RELU:
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			y[i] = LOOP(relu)(g[i]) * u[i];
		return;
	case FP_SILU:
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			y[i] = LOOP(silu)(g[i]) * u[i];
		return;
	case FP_GELU_TANH:
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			y[i] = LOOP(gelu_tanh)(g[i]) * u[i];
		return;
	case FP_GELU:
		for (int64_t i = 0; i < n; i++)
			y[i] = LOOP(gelu)(g[i]) * u[i];
		return;
	}
}
/* NOLINTEND(bugprone-branch-clone) */

TARGET static void LOOP(rotate)(float *x, const float *cosine, const float *sine, int64_t half)
{
	float *z = x + half;
#pragma omp simd
	for (int64_t i = 0; i < half; i++) {
		float a = x[i], b = z[i];
		x[i] = a * cosine[i] - b * sine[i];
		z[i] = b * cosine[i] + a * sine[i];
	}
}

/* --- pruning ---------------------------------------------------------------------------------------------------- */

/* Entries below the threshold become +0.0, never −0.0. NaN fails the comparison and stays NaN. */
LOOP_INLINE float LOOP(soft)(float z, float threshold)
{
	float size = __builtin_fabsf(z) - threshold;
	return size <= 0.0f ? 0.0f : __builtin_copysignf(size, z);
}

TARGET static double LOOP(fista)(fp_momentum rule, float step, float threshold, float momentum, const float *g,
								 float *y, float *p, int64_t n)
{
	double change = 0;
	if (rule == FP_MOMENTUM_STANDARD) {
#pragma omp simd reduction(+ : change)
		for (int64_t i = 0; i < n; i++) {
			float next = LOOP(soft)(y[i] - step * g[i], threshold);
			float moved = next - p[i];
			y[i] = next + momentum * moved;
			p[i] = next;
			change += (double)moved * (double)moved;
		}
	} else {
#pragma omp simd reduction(+ : change)
		for (int64_t i = 0; i < n; i++) {
			float next = LOOP(soft)(y[i] - step * g[i], threshold);
			float moved = next - p[i];
			y[i] = next + momentum * (next - y[i]);
			p[i] = next;
			change += (double)moved * (double)moved;
		}
	}
	return change;
}

TARGET static void LOOP(apply_mask)(float *x, const uint8_t *mask, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		x[i] = mask[i] ? x[i] : 0.0f;
}

TARGET static void LOOP(support_sum)(const float *g, const float *w, const uint8_t *mask, float *s, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		s[i] = g[i] + w[i] + (mask[i] ? 0.0f : s[i]);
}

TARGET static void LOOP(support_target)(float penalty, float shrink, const float *w, const float *r,
										const uint8_t *mask, float *s, float *t, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		float value = mask[i] ? s[i] : shrink * s[i];
		s[i] = value;
		t[i] = penalty * ((mask[i] ? value : -value) - w[i]);
	}
	if (!r)
		return;
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		t[i] += r[i];
}

TARGET static int64_t LOOP(mask_distance)(const uint8_t *a, const uint8_t *b, int64_t n)
{
	int64_t total = 0;
	for (int64_t begin = 0; begin < n; begin += LOOP_PIECE) {
		int64_t end = n - begin < LOOP_PIECE ? n : begin + LOOP_PIECE;
		uint32_t count = 0;
#pragma omp simd reduction(+ : count)
		for (int64_t i = begin; i < end; i++)
			count += (uint32_t)((a[i] != 0) != (b[i] != 0));
		total += count;
	}
	return total;
}

/* --- gradients -------------------------------------------------------------------------------------------------- */

TARGET static void LOOP(normalise_backward)(float *dx, const float *dy, const float *x, int64_t n, float centre,
											float factor, float a, float b, const float *weight)
{
	if (weight) {
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			dx[i] = factor * (weight[i] * dy[i] - a - b * (x[i] - centre));
	} else {
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			dx[i] = factor * (dy[i] - a - b * (x[i] - centre));
	}
}

LOOP_INLINE float LOOP(relu_slope)(float x)
{
	return x > 0.0f ? 1.0f : 0.0f;
}

/* σ(1 + x(1 − σ)) with σ = 1/(1 + exp(−x)) */
LOOP_INLINE float LOOP(silu_slope)(float x)
{
	float e = LOOP(exponential)(-x);
	float sigma = 1.0f / (1.0f + e);
	return sigma + x * sigma * (e * sigma);
}

LOOP_INLINE float LOOP(gelu_tanh_slope)(float x)
{
	float u = 0.7978845608f * (x + 0.044715f * x * x * x);
	float slope = 0.7978845608f * (1.0f + 0.134145f * x * x);
	float e = LOOP(exponential)(-2.0f * u);
	float sigma = 1.0f / (1.0f + e);
	return sigma + 2.0f * x * slope * sigma * (e * sigma);
}

LOOP_INLINE float LOOP(gelu_slope)(float x)
{
	return 0.5f * (1.0f + erff(x * 0.70710678118f)) + x * 0.39894228040f * LOOP(exponential)(-0.5f * x * x);
}

TARGET static void LOOP(activate_backward)(fp_activation kind, float *dx, const float *dy, const float *x, int64_t n)
{
	switch (kind) {
	case FP_RELU:
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			dx[i] = dy[i] * LOOP(relu_slope)(x[i]);
		return;
	case FP_SILU:
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			dx[i] = dy[i] * LOOP(silu_slope)(x[i]);
		return;
	case FP_GELU_TANH:
#pragma omp simd
		for (int64_t i = 0; i < n; i++)
			dx[i] = dy[i] * LOOP(gelu_tanh_slope)(x[i]);
		return;
	case FP_GELU:
		for (int64_t i = 0; i < n; i++)
			dx[i] = dy[i] * LOOP(gelu_slope)(x[i]);
		return;
	}
}

#define LOOP_GATED(f)                                                                                                  \
	for (int64_t i = 0; i < n; i++) {                                                                                  \
		float gate = g[i], up = u[i], d = dy[i];                                                                       \
		dg[i] = d * up * LOOP(f##_slope)(gate);                                                                        \
		du[i] = d * LOOP(f)(gate);                                                                                     \
	}                                                                                                                  \
	return

TARGET static void LOOP(activate_gated_backward)(fp_activation kind, float *dg, float *du, const float *dy,
												 const float *g, const float *u, int64_t n)
{
	switch (kind) {
	case FP_RELU:
#pragma omp simd
		LOOP_GATED(relu);
	case FP_SILU:
#pragma omp simd
		LOOP_GATED(silu);
	case FP_GELU_TANH:
#pragma omp simd
		LOOP_GATED(gelu_tanh);
	case FP_GELU:
		LOOP_GATED(gelu);
	}
}

TARGET static void LOOP(softmax_backward)(float *ds, const float *p, int64_t n, float centre)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		ds[i] = p[i] * (ds[i] - centre);
}

TARGET static void LOOP(subtract)(float *d, const float *x, const float *y, int64_t n)
{
#pragma omp simd
	for (int64_t i = 0; i < n; i++)
		d[i] = x[i] - y[i];
}

TARGET static double LOOP(difference)(float *d, const float *y, const float *t, int64_t n, float scale)
{
	double total = 0;
#pragma omp simd reduction(+ : total)
	for (int64_t i = 0; i < n; i++) {
		float off = y[i] - t[i];
		d[i] = scale * off;
		total += (double)off * (double)off;
	}
	return total;
}

TARGET static void LOOP(adam)(const fp_adam *rule, const float *g, float *m, float *v, float *w, int64_t n)
{
	float beta1 = rule->beta1, beta2 = rule->beta2, epsilon = rule->epsilon;
	float first = 1.0f - beta1, second = 1.0f - beta2;
	/* rate·m̂/(√v̂ + ε), with the bias corrections moved out of the loop */
	double correction = 1 - pow((double)beta2, (double)rule->step);
	float rate = (float)((double)rule->rate / (1 - pow((double)beta1, (double)rule->step)));
	float root = (float)(1 / sqrt(correction));
	float unkept = rule->keep_zeros ? 0.0f : 1.0f;
#pragma omp simd
	for (int64_t i = 0; i < n; i++) {
		float keep = w[i] != 0.0f ? 1.0f : unkept;
		float mean = beta1 * m[i] + first * g[i];
		float square = beta2 * v[i] + second * g[i] * g[i];
		float next = w[i] - rate * mean / (root * __builtin_sqrtf(square) + epsilon);
		m[i] = keep != 0.0f ? mean : m[i];
		v[i] = keep != 0.0f ? square : v[i];
		w[i] = keep != 0.0f ? next : 0.0f;
	}
}

static const fp_cpu_loops LOOP(table) = {
	.name = LOOPS_NAME,
	.maximum = LOOP(maximum),
	.exp_sum = LOOP(exp_sum),
	.exp_store = LOOP(exp_store),
	.exp_dot = LOOP(exp_dot),
	.scale = LOOP(scale),
	.axpby = LOOP(axpby),
	.multiply = LOOP(multiply),
	.add = LOOP(add),
	.max_abs = LOOP(max_abs),
	.sum = LOOP(sum),
	.squares = LOOP(squares),
	.dot = LOOP(dot),
	.finite = LOOP(finite),
	.normalise = LOOP(normalise),
	.activate = LOOP(activate),
	.activate_gated = LOOP(activate_gated),
	.rotate = LOOP(rotate),
	.fista = LOOP(fista),
	.apply_mask = LOOP(apply_mask),
	.support_sum = LOOP(support_sum),
	.support_target = LOOP(support_target),
	.mask_distance = LOOP(mask_distance),
	.normalise_backward = LOOP(normalise_backward),
	.activate_backward = LOOP(activate_backward),
	.activate_gated_backward = LOOP(activate_gated_backward),
	.softmax_backward = LOOP(softmax_backward),
	.difference = LOOP(difference),
	.subtract = LOOP(subtract),
	.adam = LOOP(adam),
};

#undef LOOP_INLINE
#undef LOOP_PIECE
#undef LOOP_GATED
