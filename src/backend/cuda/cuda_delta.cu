/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_delta.cu: FISTA on the difference D = Y − W, which is stored in two 16-bit halves.
 *
 * The upper half of D is the bf16 operand of the gradient's product; both halves together are the float. A step thus
 * reads and writes four bytes per entry of Y and rounds nothing for the product. W and R have 16 bits. All operations
 * are limited by memory bandwidth, so they process eight entries at a time where the matrices are contiguous.
 */
#include "backend/cuda/cuda_keys.cuh"
#include "backend/cuda/cuda_soft.cuh"
#include "backend/cuda/cuda_sums.cuh"

#include <type_traits>

/* --- halves ------------------------------------------------------------------------------------------------------- */

__device__ static inline float join(unsigned high, unsigned low)
{
	return __uint_as_float((high << 16) + (unsigned)(int)(short)low);
}

/* Ties round up in magnitude, so that the rest always fits into 16 bits. A NaN is kept in the upper half. */
__device__ static inline void split(float x, unsigned *high, unsigned *low)
{
	unsigned bits = __float_as_uint(x);
	*high = ((bits + 0x8000u) >> 16) & 0xffffu;
	*low = (bits - (*high << 16)) & 0xffffu;
	if (x != x) {
		*high = 0x7fc0u;
		*low = 0;
	}
}

/* --- one entry or eight ------------------------------------------------------------------------------------------- */

template <int N> struct numbers {
	float at[N];
};
template <int N> struct halves {
	unsigned high[N], low[N];
};

template <int N, typename T> __device__ static inline numbers<N> read(const T *x)
{
	numbers<N> out;
	if constexpr (N == 1) {
		out.at[0] = fp_cuda_load(x);
	} else if constexpr (sizeof(T) == 4) {
		float4 a = ((const float4 *)x)[0], b = ((const float4 *)x)[1];
		out = numbers<N>{{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
	} else {
		uint4 raw = *(const uint4 *)x;
#pragma unroll
		for (int i = 0; i < N; i++)
			out.at[i] = fp_cuda_load((const T *)&raw + i);
	}
	return out;
}

template <int N> __device__ static inline void write(float *out, const numbers<N> &x)
{
	if constexpr (N == 1) {
		*out = x.at[0];
	} else {
		((float4 *)out)[0] = float4{x.at[0], x.at[1], x.at[2], x.at[3]};
		((float4 *)out)[1] = float4{x.at[4], x.at[5], x.at[6], x.at[7]};
	}
}

template <int N> __device__ static inline void read_words(const uint16_t *x, unsigned (&out)[N])
{
	if constexpr (N == 1) {
		out[0] = *x;
	} else {
		uint4 raw = *(const uint4 *)x;
		const unsigned pairs[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
		for (int i = 0; i < 4; i++) {
			out[2 * i] = pairs[i] & 0xffffu;
			out[2 * i + 1] = pairs[i] >> 16;
		}
	}
}

template <int N> __device__ static inline void write_words(uint16_t *out, const unsigned (&x)[N])
{
	if constexpr (N == 1)
		*out = (uint16_t)x[0];
	else
		*(uint4 *)out = uint4{x[0] | x[1] << 16, x[2] | x[3] << 16, x[4] | x[5] << 16, x[6] | x[7] << 16};
}

/* The upper half of a number as a float: the value that a product uses. */
__device__ static inline float upper(float x)
{
	unsigned high, low;
	split(x, &high, &low);
	return __uint_as_float(high << 16);
}

/* A matrix in halves as plain pointers. */
struct split_view {
	uint16_t *high, *low;
	int64_t stride;
};

template <int N> __device__ static inline numbers<N> read_halves(const split_view &d, int64_t at)
{
	halves<N> h;
	numbers<N> out;
	read_words<N>(d.high + at, h.high);
	read_words<N>(d.low + at, h.low);
#pragma unroll
	for (int i = 0; i < N; i++)
		out.at[i] = join(h.high[i], h.low[i]);
	return out;
}

template <int N> __device__ static inline void write_halves(const split_view &d, int64_t at, const numbers<N> &x)
{
	halves<N> h;
#pragma unroll
	for (int i = 0; i < N; i++)
		split(x.at[i], &h.high[i], &h.low[i]);
	write_words<N>(d.high + at, h.high);
	write_words<N>(d.low + at, h.low);
}

/* --- checks and launches ------------------------------------------------------------------------------------------ */

static bool is_split(fp_matrix D, fp_matrix like)
{
	return fp_cuda_is_view(D, FP_BF16) && D.rows == 2 * like.rows && D.cols == like.cols;
}

static split_view split_view_of(fp_matrix D)
{
	uint16_t *high = fp_cuda_at<uint16_t>(D);
	return split_view{high, high + D.rows / 2 * D.stride, D.stride};
}

/* True when a view of `size` entries can be read as one row in groups of eight. True for an absent one. */
static bool in_eights(fp_matrix m, int64_t size)
{
	if (fp_matrix_is_absent(m))
		return true;
	uintptr_t at = (uintptr_t)m.buffer->data + (uintptr_t)(m.offset * fp_dtype_size(m.dtype));
	return fp_cuda_is_contiguous(m) && size % 8 == 0 && at % 16 == 0;
}

/* --- operations --------------------------------------------------------------------------------------------------- */

template <typename T> static fp_status split_as(fp_backend *be, fp_matrix V, fp_matrix W, fp_matrix D, const T *w)
{
	int64_t size = fp_matrix_size(V), vs = V.stride, ws = W.stride;
	const float *v = fp_cuda_floats(V);
	split_view d = split_view_of(D);
	if (in_eights(V, size) && in_eights(W, size) && in_eights(D, size))
		return fp_cuda_map(be, 1, size / 8, true, [=] __device__(int64_t, int64_t j) {
			numbers<8> x = read<8>(v + 8 * j), y = read<8>(w + 8 * j);
#pragma unroll
			for (int i = 0; i < 8; i++)
				x.at[i] -= y.at[i];
			write_halves<8>(d, 8 * j, x);
		});
	return fp_cuda_map(be, V.rows, V.cols, false, [=] __device__(int64_t i, int64_t j) {
		write_halves<1>(d, i * d.stride + j, numbers<1>{{v[i * vs + j] - fp_cuda_load(w + i * ws + j)}});
	});
}

fp_status fp_cuda_split_delta(fp_backend *be, fp_matrix V, fp_matrix W, fp_matrix D)
{
	FP_REQUIRE(be, fp_cuda_is_f32(V) && fp_cuda_is_weight(W) && fp_cuda_same_shape(V, W) && is_split(D, V));
	return fp_cuda_by_weight_type(W, [&](auto *w) { return split_as(be, V, W, D, w); });
}

template <typename T> static fp_status join_as(fp_backend *be, fp_matrix W, fp_matrix D, fp_matrix V, const T *w)
{
	int64_t size = fp_matrix_size(V), vs = V.stride, ws = W.stride;
	float *v = fp_cuda_floats(V);
	split_view d = split_view_of(D);
	if (in_eights(V, size) && in_eights(W, size) && in_eights(D, size))
		return fp_cuda_map(be, 1, size / 8, true, [=] __device__(int64_t, int64_t j) {
			numbers<8> x = read_halves<8>(d, 8 * j), y = read<8>(w + 8 * j);
#pragma unroll
			for (int i = 0; i < 8; i++)
				x.at[i] += y.at[i];
			write<8>(v + 8 * j, x);
		});
	return fp_cuda_map(be, V.rows, V.cols, false, [=] __device__(int64_t i, int64_t j) {
		v[i * vs + j] = fp_cuda_load(w + i * ws + j) + read_halves<1>(d, i * d.stride + j).at[0];
	});
}

fp_status fp_cuda_join_delta(fp_backend *be, fp_matrix W, fp_matrix D, fp_matrix V)
{
	FP_REQUIRE(be, fp_cuda_is_f32(V) && fp_cuda_is_weight(W) && fp_cuda_same_shape(V, W) && is_split(D, V));
	return fp_cuda_by_weight_type(W, [&](auto *w) { return join_as(be, W, D, V, w); });
}

template <typename W, typename G> struct delta_numbers {
	const W *w;
	const G *g;
	const __nv_bfloat16 *r; /* NULL: zero */
	float *p;               /* NULL: not wanted */
	split_view d, from;
	int64_t ws, gs, rs, ps;
	fp_cuda_fista_rule rule;
	bool read_p;
};

/* What a step adds up: *change or *bound of step(). */
enum delta_sum_kind { SUM_CHANGE, SUM_BOUND };

/* The step of N entries at the given offsets; returns their part of the sum. */
template <int N, delta_sum_kind KIND, typename W, typename G>
__device__ static inline double delta_step(const delta_numbers<W, G> &n, int64_t w_at, int64_t g_at, int64_t r_at,
										   int64_t p_at, int64_t d_at, int64_t from_at)
{
	numbers<N> d = read_halves<N>(n.from, from_at), w = read<N>(n.w + w_at), g = read<N>(n.g + g_at), r = {}, p = {};
	if (n.r)
		r = read<N>(n.r + r_at);
	if (n.read_p)
		p = read<N>(n.p + p_at);
	double sum = 0;
#pragma unroll
	for (int i = 0; i < N; i++) {
		float y = w.at[i] + d.at[i], before = d.at[i], gradient = g.at[i] - r.at[i];
		double moved = (double)fp_cuda_fista_update(n.rule, gradient, &y, &p.at[i]);
		d.at[i] = y - w.at[i];
		if constexpr (KIND == SUM_CHANGE)
			sum += moved * moved;
		else /* terms in float, the sum in double */
			sum += (double)(2.0f * upper(d.at[i]) * gradient) - (double)(upper(before) * g.at[i]);
	}
	write_halves<N>(n.d, d_at, d);
	if (n.p)
		write<N>(n.p + p_at, p);
	return sum;
}

template <delta_sum_kind KIND, typename W, typename G>
static fp_status delta_all(fp_backend *be, const delta_numbers<W, G> &n, fp_matrix shape, bool eights, double *sum)
{
	int64_t size = fp_matrix_size(shape);
	auto eight = [=] __device__(int64_t, int64_t j) {
		return delta_step<8, KIND>(n, 8 * j, 8 * j, 8 * j, 8 * j, 8 * j, 8 * j);
	};
	auto one = [=] __device__(int64_t i, int64_t j) {
		return delta_step<1, KIND>(n, i * n.ws + j, i * n.gs + j, i * n.rs + j, i * n.ps + j, i * n.d.stride + j,
								   i * n.from.stride + j);
	};
	if (!sum)
		return eights ? fp_cuda_map(be, 1, size / 8, true, eight) : fp_cuda_map(be, shape.rows, shape.cols, false, one);
	return eights ? sum_of(be, span_of(1, size / 8, true), sum, eight)
				  : sum_of(be, span_of(shape.rows, shape.cols, false), sum, one);
}

fp_status fp_cuda_fista_step_delta(fp_backend *be, const fp_delta_step *delta, fp_matrix G, double *change,
								   double *bound)
{
	fp_matrix W = delta->W, R = delta->R, D = delta->D, P = delta->P;
	fp_matrix from = fp_matrix_is_absent(delta->from) ? D : delta->from;
	bool literal = delta->rule == FP_MOMENTUM_LITERAL, has_r = !fp_matrix_is_absent(R), has_p = !fp_matrix_is_absent(P);
	FP_REQUIRE(be, fp_cuda_is_weight(W) && fp_cuda_is_f32_or_bf16(G) && fp_cuda_same_shape(G, W) && is_split(D, G));
	FP_REQUIRE(be, is_split(from, G));
	FP_REQUIRE(be, !has_r || (fp_cuda_is_view(R, FP_BF16) && fp_cuda_same_shape(G, R)));
	FP_REQUIRE(be, !has_p || (fp_cuda_is_f32(P) && fp_cuda_same_shape(G, P)));
	FP_REQUIRE(be, (has_p || (literal && !change)) && !(change && bound));
	int64_t size = fp_matrix_size(G);
	bool eights = in_eights(W, size) && in_eights(G, size) && in_eights(R, size) && in_eights(D, size) &&
				  in_eights(from, size) && in_eights(P, size);
	return fp_cuda_by_weight_type(W, [&](auto *w) {
		return fp_cuda_by_type(G, [&](auto *g) {
			delta_numbers<std::remove_pointer_t<decltype(w)>, std::remove_pointer_t<decltype(g)>> n = {};
			n.w = w;
			n.g = g;
			n.r = has_r ? fp_cuda_at<__nv_bfloat16>(R) : nullptr;
			n.p = has_p ? fp_cuda_floats(P) : nullptr;
			n.d = split_view_of(D);
			n.from = split_view_of(from);
			n.ws = W.stride;
			n.gs = G.stride;
			n.rs = R.stride;
			n.ps = P.stride;
			n.rule = {delta->step, delta->threshold, delta->momentum, literal};
			n.read_p = has_p && (!literal || change);
			return bound ? delta_all<SUM_BOUND>(be, n, G, eights, bound)
						 : delta_all<SUM_CHANGE>(be, n, G, eights, change);
		});
	});
}

/* Eight entries: whole groups of M. */
template <int M, typename T>
__device__ static inline void round_eight(const split_view &d, const split_view &out, const T *w, int kept, int64_t at)
{
	numbers<8> x = read_halves<8>(d, at), y = read<8>(w + at);
	unsigned keys[8];
#pragma unroll
	for (int i = 0; i < 8; i++)
		keys[i] = fp_cuda_key(y.at[i] + x.at[i]);
#pragma unroll
	for (int i = 0; i < 8; i++) {
		int ahead = 0;
#pragma unroll
		for (int k = i / M * M; k < i / M * M + M; k++)
			ahead += keys[k] > keys[i] || (keys[k] == keys[i] && k < i);
		x.at[i] = ahead < kept ? x.at[i] : -y.at[i];
	}
	write_halves<8>(out, at, x);
}

/* One group of any size. */
template <typename T>
__device__ static inline void round_group(const split_view &d, const split_view &out, const T *w, int kept, int count,
										  int64_t d_at, int64_t out_at, int64_t w_at)
{
	unsigned keys[FP_DELTA_GROUP];
	for (int i = 0; i < count; i++)
		keys[i] = fp_cuda_key(fp_cuda_load(w + w_at + i) + read_halves<1>(d, d_at + i).at[0]);
	for (int i = 0; i < count; i++) {
		int ahead = 0;
		for (int k = 0; k < count; k++)
			ahead += keys[k] > keys[i] || (keys[k] == keys[i] && k < i);
		numbers<1> x = ahead < kept ? read_halves<1>(d, d_at + i) : numbers<1>{{-fp_cuda_load(w + w_at + i)}};
		write_halves<1>(out, out_at + i, x);
	}
}

template <typename T>
static fp_status round_delta_as(fp_backend *be, const fp_pattern *pattern, fp_matrix W, fp_matrix D, fp_matrix out,
								const T *w)
{
	int64_t size = fp_matrix_size(W), cols = W.cols, ws = W.stride;
	int group = (int)pattern->group, kept = (int)pattern->kept;
	split_view d = split_view_of(D), o = split_view_of(out);
	bool eights = in_eights(W, size) && in_eights(D, size) && in_eights(out, size) && cols % 8 == 0;
	if (eights && group == 4)
		return fp_cuda_map(be, 1, size / 8, true,
						   [=] __device__(int64_t, int64_t j) { round_eight<4>(d, o, w, kept, 8 * j); });
	if (eights && group == 8)
		return fp_cuda_map(be, 1, size / 8, true,
						   [=] __device__(int64_t, int64_t j) { round_eight<8>(d, o, w, kept, 8 * j); });
	return fp_cuda_map(be, W.rows, (cols + group - 1) / group, false, [=] __device__(int64_t i, int64_t j) {
		int count = (int)(cols - j * group < group ? cols - j * group : group);
		int some = (kept * count + group - 1) / group; /* the same share of a shorter last group, rounded up */
		round_group(d, o, w, some, count, i * d.stride + j * group, i * o.stride + j * group, i * ws + j * group);
	});
}

fp_status fp_cuda_round_delta(fp_backend *be, const fp_pattern *pattern, fp_matrix W, fp_matrix D, fp_matrix out)
{
	FP_REQUIRE(be, fp_cuda_is_weight(W) && is_split(D, W) && is_split(out, W));
	FP_REQUIRE(be, pattern->group > 0 && pattern->group <= FP_DELTA_GROUP);
	return fp_cuda_by_weight_type(W, [&](auto *w) { return round_delta_as(be, pattern, W, D, out, w); });
}

template <int N, typename G>
__device__ static inline double delta_terms(const __nv_bfloat16 *d, const G *g, const __nv_bfloat16 *r)
{
	numbers<N> x = read<N>(d), y = read<N>(g), z = {};
	if (r)
		z = read<N>(r);
	double sum = 0;
#pragma unroll
	for (int i = 0; i < N; i++)
		sum += (double)(x.at[i] * (y.at[i] - 2.0f * z.at[i])); /* terms in float, the sum in double */
	return sum;
}

template <typename T>
static fp_status delta_sum_as(fp_backend *be, fp_matrix D, fp_matrix G, fp_matrix R, double *out, const T *g)
{
	int64_t size = fp_matrix_size(G), ds = D.stride, gs = G.stride, rs = R.stride;
	const __nv_bfloat16 *d = fp_cuda_at<__nv_bfloat16>(D);
	const __nv_bfloat16 *r = fp_matrix_is_absent(R) ? nullptr : fp_cuda_at<__nv_bfloat16>(R);
	if (in_eights(D, size) && in_eights(G, size) && in_eights(R, size))
		return sum_of(be, span_of(1, size / 8, true), out, [=] __device__(int64_t, int64_t j) {
			return delta_terms<8>(d + 8 * j, g + 8 * j, r ? r + 8 * j : r);
		});
	return sum_of(be, span_of(G.rows, G.cols, false), out, [=] __device__(int64_t i, int64_t j) {
		return delta_terms<1>(d + i * ds + j, g + i * gs + j, r ? r + i * rs + j : r);
	});
}

fp_status fp_cuda_delta_sum(fp_backend *be, fp_matrix D, fp_matrix G, fp_matrix R, double *out)
{
	FP_REQUIRE(be, fp_cuda_is_f32_or_bf16(G) && is_split(D, G));
	FP_REQUIRE(be, fp_matrix_is_absent(R) || (fp_cuda_is_view(R, FP_BF16) && fp_cuda_same_shape(G, R)));
	return fp_cuda_by_type(G, [&](auto *g) { return delta_sum_as(be, D, G, R, out, g); });
}
