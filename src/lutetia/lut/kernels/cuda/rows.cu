// Rows of tables, added up and multiplied by g. One block per THREADS rows of the batch and block of tables; the tables pass through
// shared memory, TOGETHER on their way while as many are read. Eight lanes read a row: its 128-byte lines without conflict.
//
// R rows of a table · W outputs, a multiple of 8 · COUNT rows that a detector reads: 0 one as it is, 1 one with a coefficient, 2 two

#include "common.cuh"

#define TABLE (R * W / 4)  // 16-byte parts
#define PLACES (2 * TOGETHER)

// Fetch TOGETHER of the tables [n_tables], from t on; past the last, nothing.
__device__ __forceinline__ void fetch(float4* slab, const float4* tables, int t, int n_tables) {
    for (int u = t; u < min(t + TOGETHER, n_tables); ++u)
        for (int e = threadIdx.x; e < TABLE; e += THREADS) copy_async(slab + u % PLACES * TABLE + e, tables + (size_t)u * TABLE + e);
    close_group();
}

// Table t, once it is there and nobody reads those before any more, whose places the next ones take.
__device__ __forceinline__ const float* table_of(float4* slab, const float4* tables, int t, int n_tables) {
    if (t % TOGETHER == 0) {
        wait_for_all_but<0>();
        __syncthreads();
        fetch(slab, tables, t + TOGETHER, n_tables);
    }
    return reinterpret_cast<const float*>(slab + t % PLACES * TABLE);
}

// Each lane holds what its own row of the batch found; the eight lanes of a group go through their eight rows together.
extern "C" __global__ void __launch_bounds__(THREADS, 1) fill_rows(
    const float4* __restrict__ tables, const int* __restrict__ index_in, const int* __restrict__ other_in,
    const float* __restrict__ a_in, const float* __restrict__ b_in, float* __restrict__ y, int n, int n_outputs, int n_tables)
{
    SHARED(float4, slab);  // [PLACES][TABLE]
    const int row = blockIdx.x * THREADS + threadIdx.x, part = threadIdx.x & 7, first = blockIdx.y * n_tables;
    Part total[8];
    #pragma unroll
    for (int s = 0; s < 8; ++s)
        #pragma unroll
        for (int k = 0; k < EACH; ++k) total[s].v[k] = 0.f;
    size_t place = (size_t)first * n + min(row, n - 1);
    const bool apart = COUNT == 2 && other_in;  // else `index` holds both, sixteen bits each
    int index = index_in[place], other = apart ? other_in[place] : 0;
    float a = COUNT ? a_in[place] : 1.f, b = COUNT == 2 ? b_in[place] : 0.f;
    tables += (size_t)first * TABLE;
    fetch(slab, tables, 0, n_tables);
    for (int t = 0; t < n_tables; ++t) {
        const int both = index | other << 16;
        const float a_now = a, b_now = b;
        if (t + 1 < n_tables) {
            place += n;
            index = index_in[place];
            if (COUNT) a = a_in[place];
            if (apart) other = other_in[place];
            if (COUNT == 2) b = b_in[place];
        }
        const float* table = table_of(slab, tables, t, n_tables);
        #pragma unroll
        for (int s = 0; s < 8; ++s) {
            Part line;
            const unsigned chosen = __shfl_sync(FULL, both, s, 8);
            load(line, table + (chosen & 0xffff) * W, part);
            const float factor = COUNT ? __shfl_sync(FULL, a_now, s, 8) : 1.f;
            #pragma unroll
            for (int k = 0; k < EACH; ++k) total[s].v[k] = COUNT ? fmaf(factor, line.v[k], total[s].v[k]) : total[s].v[k] + line.v[k];
            if (COUNT == 2) {
                load(line, table + (chosen >> 16) * W, part);
                const float second = __shfl_sync(FULL, b_now, s, 8);
                #pragma unroll
                for (int k = 0; k < EACH; ++k) total[s].v[k] = fmaf(second, line.v[k], total[s].v[k]);
            }
        }
    }
    #pragma unroll
    for (int s = 0; s < 8; ++s) {
        const int to = (row & ~7) + s;
        if (to < n) store(total[s], y + (size_t)to * n_outputs + blockIdx.y * W, part);
    }
}

// da = g · W[index]; db = g · W[other] with COUNT 2. COUNT 0 is the hard read: `other` is the bit of the margin delta, and da is
// U'(delta) · g · (W[index] - W[flipped]).
extern "C" __global__ void __launch_bounds__(THREADS, 1) row_gains(
    const float4* __restrict__ tables, const int* __restrict__ index_in, const int* __restrict__ other_in,
    const float* __restrict__ delta_in, const float* __restrict__ grad, float* __restrict__ da, float* __restrict__ db,
    int n, int n_outputs, int n_tables)
{
    SHARED(float4, slab);
    const int row = blockIdx.x * THREADS + threadIdx.x, part = threadIdx.x & 7, first = blockIdx.y * n_tables;
    Part g[8];
    #pragma unroll
    for (int s = 0; s < 8; ++s) load(g[s], grad + (size_t)min((row & ~7) + s, n - 1) * n_outputs + blockIdx.y * W, part);
    size_t place = (size_t)first * n + min(row, n - 1);
    int index = index_in[place], other = COUNT != 1 ? other_in[place] : 0;
    float delta = COUNT ? 0.f : delta_in[place];
    tables += (size_t)first * TABLE;
    fetch(slab, tables, 0, n_tables);
    for (int t = 0; t < n_tables; ++t) {
        const int both = index | (COUNT ? other : index ^ (1 << other)) << 16;
        const float slope = COUNT ? 1.f : slope_at(delta);
        const size_t here = place;
        if (t + 1 < n_tables) {
            place += n;
            index = index_in[place];
            if (COUNT != 1) other = other_in[place];
            if (!COUNT) delta = delta_in[place];
        }
        const float* table = table_of(slab, tables, t, n_tables);
        float one[8], two[8];
        #pragma unroll
        for (int s = 0; s < 8; ++s) {
            Part line, second;
            const int chosen = __shfl_sync(FULL, both, s, 8);
            load(line, table + (chosen & 0xffff) * W, part);
            if (COUNT != 1) load(second, table + (chosen >> 16) * W, part);
            one[s] = 0.f;
            two[s] = 0.f;
            #pragma unroll
            for (int k = 0; k < EACH; ++k) {
                one[s] = fmaf(g[s].v[k], COUNT ? line.v[k] : line.v[k] - second.v[k], one[s]);
                if (COUNT == 2) two[s] = fmaf(g[s].v[k], second.v[k], two[s]);
            }
        }
        const float mine = slope * sum_and_turn(one, part);
        if (row < n) da[here] = mine;
        if (COUNT == 2) {
            const float others = sum_and_turn(two, part);
            if (row < n) db[here] = others;
        }
    }
}
