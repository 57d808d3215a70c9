/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_flash.cu: causal softmax attention of bf16 operands without a matrix of scores in memory.
 *
 * A block handles 64 queries of one head, a warp 16 of them. Keys and values pass through shared memory in tiles of 64;
 * the next tile is loaded while the current one is used. A tile's scores stay in registers. Their exponentials are taken
 * relative to the largest score so far, and earlier sums are rescaled when a larger one appears. The weights, rounded to
 * bf16, are the left operand of the product with the values as they are, because mma.sync has the same layout for
 * accumulators and operands. This is the online softmax of Milakov and Gimelshein in the tiling of Dao et al.
 */
#include "backend/cuda/cuda_flash_parts.cuh"

enum { QUERIES = 64, KEYS = 64, THREADS = 128, STAGES = 2 };

/* --- the instructions --------------------------------------------------------------------------------------------- */

/* Four 8 × 8 matrices; lane l gives the address of row l % 8 of matrix l / 8. */
__device__ static inline void load_four(unsigned (&r)[4], unsigned at)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
				 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
				 : "r"(at)
				 : "memory");
}
__device__ static inline void load_four_transposed(unsigned (&r)[4], unsigned at)
{
	asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
				 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
				 : "r"(at)
				 : "memory");
}

/* c += a·b for a 16 × 16, b 16 × 8 */
__device__ static inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
	asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
				 "{%0, %1, %2, %3};"
				 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
				 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* --- tiles -------------------------------------------------------------------------------------------------------- */

/* Byte offset of 16-byte piece `piece` of row `row` in a tile of D columns. The pieces of a row are permuted, so that
 * the same piece of eight rows lies in different banks. */
template <int D> __device__ static inline unsigned tile_at(int row, int piece)
{
	return (unsigned)(row * (D / 8) + (piece ^ (row & 7))) * 16;
}

/* Starts to copy KEYS rows from `first` on; rows from `length` on are zeros. */
template <int D>
__device__ static inline void load_tile(unsigned to, const __nv_bfloat16 *from, int64_t stride, int first, int length)
{
	constexpr int pieces = D / 8;
#pragma unroll
	for (int i = 0; i < KEYS * pieces / THREADS; i++) {
		int at = i * THREADS + (int)threadIdx.x, row = at / pieces, piece = at % pieces;
		bool valid = first + row < length;
		copy_async(to + tile_at<D>(row, piece), from + (valid ? first + row : 0) * stride + piece * 8, valid);
	}
}

/* --- the kernel --------------------------------------------------------------------------------------------------- */

template <int D> __global__ static void __launch_bounds__(THREADS) flash_kernel(fp_cuda_flash f)
{
	extern __shared__ __align__(128) char tiles[];
	constexpr int tile_bytes = KEYS * D * 2;
	int lane = threadIdx.x % 32, head = blockIdx.x;
	int first = ((int)gridDim.z - 1 - (int)blockIdx.z) * QUERIES; /* the longest rows start first */
	int64_t start = (int64_t)blockIdx.y * f.length;
	const __nv_bfloat16 *k = f.k + start * f.k_stride + head / f.group * D;
	const __nv_bfloat16 *v = f.v + start * f.v_stride + head / f.group * D;
	int row = first + (int)threadIdx.x / 32 * 16;
	unsigned q[D / 16][4];
	load_queries<D>(q, f.q + start * f.q_stride + head * D, f.q_stride, row, f.length);

	int begin = f.window > 0 && first - f.window + 1 > 0 ? (first - f.window + 1) / KEYS * KEYS : 0;
	int end = min(first + QUERIES, f.length);
	unsigned base = shared_address(tiles);
	load_tile<D>(base, k, f.k_stride, begin, f.length);
	load_tile<D>(base + tile_bytes, v, f.v_stride, begin, f.length);
	copy_commit();

	float out[D / 8][4] = {};
	running r = {{-INFINITY, -INFINITY}, {0, 0}};
	int matrix = lane / 8, line = lane % 8, stage = 0;
	for (int key = begin; key < end; key += KEYS, stage ^= 1) {
		unsigned own = base + stage * 2 * tile_bytes, other = base + (stage ^ 1) * 2 * tile_bytes;
		if (key + KEYS < end) {
			load_tile<D>(other, k, f.k_stride, key + KEYS, f.length);
			load_tile<D>(other + tile_bytes, v, f.v_stride, key + KEYS, f.length);
		}
		copy_commit();
		copy_wait<1>();
		__syncthreads();

		float s[KEYS / 8][4] = {};
#pragma unroll
		for (int step = 0; step < D / 16; step++)
#pragma unroll
			for (int pair = 0; pair < KEYS / 16; pair++) {
				unsigned b[4];
				load_four(b, own + tile_at<D>(pair * 16 + matrix / 2 * 8 + line, step * 2 + matrix % 2));
				multiply_add(s[2 * pair], q[step], b[0], b[1]);
				multiply_add(s[2 * pair + 1], q[step], b[2], b[3]);
			}
		if (key + KEYS > row || f.window > 0)
			mask_scores(s, row + lane / 4, key, f.window);
		float factor[2];
		softmax(s, f.scale, r, factor);
		scale_rows(out, factor);
#pragma unroll
		for (int step = 0; step < KEYS / 16; step++) {
			const float(&low)[4] = s[2 * step], (&high)[4] = s[2 * step + 1];
			unsigned p[4] = {pack(low[0], low[1]), pack(low[2], low[3]), pack(high[0], high[1]),
							 pack(high[2], high[3])};
#pragma unroll
			for (int pair = 0; pair < D / 16; pair++) {
				unsigned b[4];
				load_four_transposed(b, own + tile_bytes +
											tile_at<D>(step * 16 + matrix % 2 * 8 + line, pair * 2 + matrix / 2));
				multiply_add(out[2 * pair], p, b[0], b[1]);
				multiply_add(out[2 * pair + 1], p, b[2], b[3]);
			}
		}
		__syncthreads(); /* before the next copies overwrite this tile */
	}

	write_rows<D>(f, start, row + lane / 4, head, out, r);
}

template <int D> static fp_status launch(fp_backend *be, const fp_cuda_flash *f, int64_t sequences, int64_t heads)
{
	const int bytes = STAGES * 2 * KEYS * D * 2;
	fp_cuda_flash scaled = *f;
	scaled.scale *= LOG2_E;
	FP_CUDA(be, cudaFuncSetAttribute(flash_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
	dim3 grid((unsigned)heads, (unsigned)sequences, (unsigned)((f->length + QUERIES - 1) / QUERIES));
	flash_kernel<D><<<grid, THREADS, (size_t)bytes, fp_cuda_stream(be)>>>(scaled);
	FP_LAUNCHED(be);
	return FP_OK;
}

/* Checks the alignment of 16-byte loads and 8-byte stores, and the limits of a grid. */
bool fp_cuda_flash_supports(const fp_cuda_flash *f, const fp_attention_shape *shape)
{
	bool aligned = f->q_stride % 8 == 0 && f->k_stride % 8 == 0 && f->v_stride % 8 == 0 && f->out_stride % 2 == 0 &&
				   (uintptr_t)f->q % 16 == 0 && (uintptr_t)f->k % 16 == 0 && (uintptr_t)f->v % 16 == 0 &&
				   (uintptr_t)f->out % 8 == 0 && (uintptr_t)f->narrow % 4 == 0;
	return aligned && (shape->head_dim == 64 || shape->head_dim == 128) && shape->sequences <= 65535 &&
		   shape->length <= 65535 * QUERIES && shape->heads <= INT32_MAX && shape->window <= INT32_MAX / 2;
}

fp_status fp_cuda_flash_attention(fp_backend *be, const fp_cuda_flash *f, const fp_attention_shape *shape)
{
#ifdef FP_HAS_HOPPER
	if (fp_cuda_state_of(be)->is_hopper)
		return fp_cuda_flash_hopper(be, f, shape);
#endif
	return shape->head_dim == 64 ? launch<64>(be, f, shape->sequences, shape->heads)
								 : launch<128>(be, f, shape->sequences, shape->heads);
}
