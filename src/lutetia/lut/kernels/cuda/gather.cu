// The gradient of tables. One block per ROWS rows of the batch, block of tables and share of its tables: g of these rows stays in
// shared memory. Table by table the rows that were read are put in order by a counting sort; then every group of eight lanes adds
// up an equal run of the list and sends one sum for each table row in it. A batch that hits one row costs no more than another.
//
// R rows of a table · W outputs, a multiple of 8 · COUNT as in rows.cu · ROWS of the batch, a multiple of THREADS

#include "common.cuh"

#define PER (ROWS / THREADS)          // rows of a thread
#define READS (COUNT == 2 ? 2 : 1)    // table rows that each reads
#define ENTRIES (READS * ROWS)
#define SHARE (ENTRIES / (THREADS / 8))  // of a group

// What a thread's rows of the batch read in one table; `first` is the place of the block's first row.
__device__ __forceinline__ void fetch(
    int* cell, float* factor, const int* index_in, const int* other_in, const float* a_in, const float* b_in, size_t first, int live)
{
    #pragma unroll
    for (int k = 0; k < PER; ++k) {
        const size_t place = first + min(k * THREADS + (int)threadIdx.x, live - 1);
        cell[READS * k] = index_in[place];
        factor[READS * k] = COUNT ? a_in[place] : 1.f;
        if (COUNT == 2) { cell[READS * k + READS - 1] = other_in[place]; factor[READS * k + READS - 1] = b_in[place]; }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) gather_rows(
    const float* __restrict__ grad, const int* __restrict__ index_in, const int* __restrict__ other_in,
    const float* __restrict__ a_in, const float* __restrict__ b_in, float* __restrict__ out, float scale,
    int n, int n_outputs, int n_tables, int tables_here)
{
    SHARED(float, g);                                              // [ROWS][W]
    uint2* entries = reinterpret_cast<uint2*>(g + ROWS * W);       // [ENTRIES]: row and table row, coefficient
    int* count = reinterpret_cast<int*>(entries + ENTRIES);        // [R]
    int* first = count + R;                                        // [R]
    const int row0 = blockIdx.x * ROWS, tid = threadIdx.x, part = tid & 7;
    const int live = min(n - row0, ROWS);
    for (int e = tid; e < ROWS * (W / 4); e += THREADS) {
        const int r = e / (W / 4), k = e % (W / 4);
        if (r < live)
            reinterpret_cast<float4*>(g)[e] =
                *reinterpret_cast<const float4*>(grad + (size_t)(row0 + r) * n_outputs + blockIdx.y * W + 4 * k);
    }
    const int t0 = blockIdx.y * n_tables + blockIdx.z * tables_here;
    int cell[PER * READS], rank[PER * READS], next_cell[PER * READS];
    float factor[PER * READS], next_factor[PER * READS];
    fetch(next_cell, next_factor, index_in, other_in, a_in, b_in, (size_t)t0 * n + row0, live);
    for (int t = t0; t < t0 + tables_here; ++t) {
        for (int c = tid; c < R; c += THREADS) count[c] = 0;
        #pragma unroll
        for (int k = 0; k < PER * READS; ++k) { cell[k] = next_cell[k]; factor[k] = scale * next_factor[k]; }
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < PER * READS; ++k)
            if (k / READS * THREADS + tid < live) rank[k] = atomicAdd(count + cell[k], 1);
        add_before(count, first, R);
        #pragma unroll
        for (int k = 0; k < PER * READS; ++k) {
            const int r = k / READS * THREADS + tid;
            if (r < live) entries[first[cell[k]] + rank[k]] = make_uint2(r | cell[k] << 16, __float_as_uint(factor[k]));
        }
        __syncthreads();
        if (t + 1 < t0 + tables_here)
            fetch(next_cell, next_factor, index_in, other_in, a_in, b_in, (size_t)(t + 1) * n + row0, live);
        const int total = READS * live, begin = (tid >> 3) * SHARE, end = min(begin + SHARE, total);
        float* table = out + (size_t)t * R * W;
        Part sum;
        #pragma unroll
        for (int k = 0; k < EACH; ++k) sum.v[k] = 0.f;
        for (int e0 = 0; e0 < SHARE; e0 += 8) {  // all lanes stay in the loop: they hand entries to each other
            const int mine = begin + e0 + part;
            const uint2 held = mine < end ? entries[mine] : make_uint2(0xffff0000u, 0u);
            #pragma unroll
            for (int s = 0; s < 8; ++s) {
                const unsigned both = __shfl_sync(FULL, held.x, s, 8);
                const float coefficient = __uint_as_float(__shfl_sync(FULL, held.y, s, 8));
                const unsigned following = s < 7 ? __shfl_sync(FULL, held.x, (s + 1) & 7, 8) >> 16
                                                 : (begin + e0 + 8 < end && e0 + 8 < SHARE ? entries[begin + e0 + 8].x >> 16 : 0xffffu);
                const int c = both >> 16;
                if (c == 0xffff) continue;
                Part line;
                load(line, g + (both & 0xffff) * W, part);
                #pragma unroll
                for (int k = 0; k < EACH; ++k) sum.v[k] = COUNT ? fmaf(coefficient, line.v[k], sum.v[k]) : sum.v[k] + line.v[k];
                if (following != c) {
                    if (!COUNT)
                        #pragma unroll
                        for (int k = 0; k < EACH; ++k) sum.v[k] *= scale;
                    add_atomic(sum, table + (size_t)c * W, part);
                    #pragma unroll
                    for (int k = 0; k < EACH; ++k) sum.v[k] = 0.f;
                }
            }
        }
        __syncthreads();
    }
}
