// The gradient of tables. One block per ROWS rows of the batch, block of tables and share of its tables: g of these rows stays in
// shared memory, and TEAMS of THREADS threads take the tables in turns. The rows that were read in a table are put in order by a
// counting sort; then every group of eight lanes adds up an equal run of the list and sends one sum for each table row in it. A
// batch that hits one row costs no more than another.
//
// R rows of a table · W outputs, a multiple of 8 · COUNT as in rows.cu · ROWS of the batch, a multiple of THREADS

#include "common.cuh"

#define PER (ROWS / THREADS)          // rows of a thread
#define READS (COUNT == 2 ? 2 : 1)    // table rows that each reads
#define ENTRIES (READS * ROWS)
#define SHARE (ENTRIES / (THREADS / 8))  // of a group

// What a thread's rows of the batch read in one table; `first` is the place of the block's first row.
__device__ __forceinline__ void fetch(
    int tid, int* cell, float* factor, const int* index_in, const int* other_in, const float* a_in, const float* b_in, size_t first, int live)
{
    #pragma unroll
    for (int k = 0; k < PER; ++k) {
        const size_t place = first + min(k * THREADS + tid, live - 1);
        cell[READS * k] = index_in[place];
        factor[READS * k] = COUNT ? a_in[place] : 1.f;
        if (COUNT == 2) { cell[READS * k + READS - 1] = other_in[place]; factor[READS * k + READS - 1] = b_in[place]; }
    }
}

extern "C" __global__ void __launch_bounds__(TEAMS * THREADS, 1) gather_rows(
    const float* __restrict__ grad, const int* __restrict__ index_in, const int* __restrict__ other_in,
    const float* __restrict__ a_in, const float* __restrict__ b_in, float* __restrict__ out, float scale,
    int n, int n_outputs, int n_tables, int tables_here)
{
    SHARED(float, g);                                              // [ROWS][W]
    const int row0 = blockIdx.x * ROWS, team = threadIdx.x / THREADS, tid = threadIdx.x % THREADS, part = tid & 7;
    uint2* entries = reinterpret_cast<uint2*>(g + ROWS * W) + team * ENTRIES;  // [ENTRIES]: row and table row, coefficient
    int* count = reinterpret_cast<int*>(g + ROWS * W + 2 * TEAMS * ENTRIES) + team * R;  // [R], then where each begins
    const int live = min(n - row0, ROWS);
    for (int e = threadIdx.x; e < ROWS * (W / 4); e += TEAMS * THREADS) {
        const int r = e / (W / 4), k = e % (W / 4);
        if (r < live)
            reinterpret_cast<float4*>(g)[e] =
                *reinterpret_cast<const float4*>(grad + (size_t)(row0 + r) * n_outputs + blockIdx.y * W + 4 * k);
    }
    __syncthreads();
    const int first = blockIdx.y * n_tables + blockIdx.z * tables_here, last = first + tables_here;
    int cell[PER * READS], rank[PER * READS], next_cell[PER * READS];
    float factor[PER * READS], next_factor[PER * READS];
    if (first + team < last)
        fetch(tid, next_cell, next_factor, index_in, other_in, a_in, b_in, (size_t)(first + team) * n + row0, live);
    for (int t = first + team; t < last; t += TEAMS) {
        for (int c = tid; c < R; c += THREADS) count[c] = 0;
        #pragma unroll
        for (int k = 0; k < PER * READS; ++k) { cell[k] = next_cell[k]; factor[k] = scale * next_factor[k]; }
        WAIT_FOR_TEAM;
        #pragma unroll
        for (int k = 0; k < PER * READS; ++k)
            if (k / READS * THREADS + tid < live) rank[k] = atomicAdd(count + cell[k], 1);
        add_before(count, count, R, team);
        #pragma unroll
        for (int k = 0; k < PER * READS; ++k) {
            const int r = k / READS * THREADS + tid;
            if (r < live) entries[count[cell[k]] + rank[k]] = make_uint2(r | cell[k] << 16, __float_as_uint(factor[k]));
        }
        WAIT_FOR_TEAM;
        if (t + TEAMS < last)
            fetch(tid, next_cell, next_factor, index_in, other_in, a_in, b_in, (size_t)(t + TEAMS) * n + row0, live);
        const int total = READS * live, begin = (tid >> 3) * SHARE, end = min(begin + SHARE, total);
        float* table = out + (size_t)t * R * W;
        Part sum;
        #pragma unroll
        for (int k = 0; k < EACH; ++k) sum.v[k] = 0.f;
        for (int e0 = 0; e0 < SHARE; e0 += 8) {  // all lanes stay in the loop: they hand entries to each other
            const int mine = begin + e0 + part;
            const uint2 held = mine < end ? entries[mine] : make_uint2(0xffff0000u, 0u);
            unsigned both = __shfl_sync(FULL, held.x, 0, 8), next;
            #pragma unroll
            for (int s = 0; s < 8; ++s, both = next) {
                const float coefficient = COUNT ? __uint_as_float(__shfl_sync(FULL, held.y, s, 8)) : 1.f;
                next = s < 7 ? __shfl_sync(FULL, held.x, (s + 1) & 7, 8)
                             : (begin + e0 + 8 < end && e0 + 8 < SHARE ? entries[begin + e0 + 8].x : 0xffff0000u);
                const int c = both >> 16;
                if (c == 0xffff) continue;
                Part line;
                load(line, g + (both & 0xffff) * W, part);
                #pragma unroll
                for (int k = 0; k < EACH; ++k) sum.v[k] = COUNT ? fmaf(coefficient, line.v[k], sum.v[k]) : sum.v[k] + line.v[k];
                if (next >> 16 != c) {
                    if (!COUNT)
                        #pragma unroll
                        for (int k = 0; k < EACH; ++k) sum.v[k] *= scale;
                    add_atomic(sum, table + (size_t)c * W, part);
                    #pragma unroll
                    for (int k = 0; k < EACH; ++k) sum.v[k] = 0.f;
                }
            }
        }
        WAIT_FOR_TEAM;
    }
}
