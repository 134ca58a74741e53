// The way back of LUT attention to inputs and positions. One block per detector, sequence and run of positions j; its warps share the
// j, and each lane takes every thirty-second i < j. What a pair sends to Q, K or PE is added up in shared memory first. Blocks that
// run at one time belong to few detectors, whose tables stay in the second-level cache.
//
// N_C anchor pairs · N_PE bits of a distance · W outputs, a multiple of 8 · BLOCKS on one multiprocessor · STEPS of four pairs each whose
// rows are on their way together

#include "common.cuh"

#define WARPS (THREADS / 32)

// grad [B, S, W] · weight [N_t, R, W] · index, delta, which [B, S, N_t] · pe, pe_delta, pe_which [S - 1, N_t] · anchors [N_t, N_C, 2].
// Slopes are added to dx [B, S, I], or, where several blocks share a sequence, to totals [B, N_t, S]; and to dpositions
// [S - 1, N_t, N_PE]. `run` positions j of a block.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) slopes_of_pairs(
    const float* __restrict__ grad, const float* __restrict__ weight,
    const int* __restrict__ index, const float* __restrict__ delta, const int* __restrict__ which,
    const int* __restrict__ pe, const float* __restrict__ pe_delta, const int* __restrict__ pe_which,
    const int* __restrict__ anchors, float* __restrict__ totals, float* __restrict__ dx, float* __restrict__ dpositions,
    int length, int n_detectors, int n_inputs, int run)
{
    SHARED(float, deltas);                                     // [S]
    float* far_deltas = deltas + length;                       // [S]: of distances
    int* keys = reinterpret_cast<int*>(far_deltas + length);   // [S]: index, and the bit of the margin above 16
    int* distances = keys + length;                            // [S]: the same of distances
    float* to_positions = reinterpret_cast<float*>(distances + length);  // [WARPS][S]
    float* to_distances = to_positions + WARPS * length;                 // [WARPS][S]
    const int t = blockIdx.y, runs = (length + run - 1) / run, b = blockIdx.x / runs;
    const int first = blockIdx.x % runs * run, last = min(first + run, length);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, part = lane & 7;
    for (int s = threadIdx.x; s < last; s += THREADS) {
        const size_t place = ((size_t)b * length + s) * n_detectors + t;
        keys[s] = index[place] | which[place] << 16;
        deltas[s] = delta[place];
        if (s < last - 1) {
            const size_t far_ = (size_t)s * n_detectors + t;
            distances[s] = N_PE ? pe[far_] | pe_which[far_] << 16 : 0;
            far_deltas[s] = N_PE ? pe_delta[far_] : 0.f;
        }
    }
    for (int e = threadIdx.x; e < 2 * WARPS * length; e += THREADS) to_positions[e] = 0.f;
    __syncthreads();
    float* to_keys = to_positions + warp * length;
    float* to_far = to_distances + warp * length;
    const float* table = weight + ((size_t)t << (2 * N_C + N_PE)) * W;
    const int mine = 4 * part + (lane >> 3);  // of 32 pairs: eight lanes work on pairs 0, 4, 8 .., those beside them on 1, 5, 9 ..
    for (int round = 0; first + round * WARPS < last; ++round) {
        const int j = first + round * WARPS + (round & 1 ? WARPS - 1 - warp : warp);  // long ones and short ones for each warp
        if (j >= last) continue;
        Part g;
        load(g, grad + ((size_t)b * length + j) * W, part);
        const int q = (keys[j] & 0xffff) << (N_C + N_PE), flip_q = 1 << (keys[j] >> 16) + N_C + N_PE;
        const float delta_q = deltas[j];
        float to_q = 0.f;
        for (int start = 0; start < j; start += 32) {
            const int i = start + mine, d = j - 1 - i;
            const bool live = i < j;
            const float delta_k = live ? deltas[i] : 0.f, delta_far = live ? far_deltas[d] : 0.f;
            const int key = live ? keys[i] : 0, distance = live ? distances[d] : 0;
            const bool at_q = fabsf(delta_q) < fabsf(delta_k);
            const bool at_far = N_PE && live && fabsf(delta_far) < fabsf(delta_q) && fabsf(delta_far) < fabsf(delta_k);
            // Of a pair that is not there the row of another one is read, which costs nothing.
            const int cell = q | (key & 0xffff) << N_PE | (distance & 0xffff);
            const int other = live ? cell ^ (at_q ? flip_q : 1 << (key >> 16) + N_PE) : cell;
            const int other_far = at_far ? cell ^ 1 << (distance >> 16) : cell;
            const int steps = min((j - start + 3) >> 2, 8);
            float one[8], two[8];
            #pragma unroll
            for (int s = 0; s < 8; ++s) one[s] = two[s] = 0.f;
            #pragma unroll
            for (int s0 = 0; s0 < 8; s0 += STEPS) {
                if (s0 >= steps) break;
                Part row[STEPS], flipped[STEPS], far_row[STEPS];
                #pragma unroll
                for (int u = 0; u < STEPS; ++u) {
                    load(row[u], table + __shfl_sync(FULL, cell, s0 + u, 8) * W, part);
                    load(flipped[u], table + __shfl_sync(FULL, other, s0 + u, 8) * W, part);
                    if (N_PE) load(far_row[u], table + __shfl_sync(FULL, other_far, s0 + u, 8) * W, part);
                }
                #pragma unroll
                for (int u = 0; u < STEPS; ++u)
                    #pragma unroll
                    for (int k = 0; k < EACH; ++k) {
                        one[s0 + u] = fmaf(g.v[k], row[u].v[k] - flipped[u].v[k], one[s0 + u]);
                        if (N_PE) two[s0 + u] = fmaf(g.v[k], row[u].v[k] - far_row[u].v[k], two[s0 + u]);
                    }
            }
            const float slope = slope_at(at_q ? delta_q : delta_k) * sum_and_turn(one, part);
            if (at_q) to_q += slope;  // never of a pair that is not there: its delta_k is 0
            else if (live) to_keys[i] += slope;
            if (N_PE) {
                const float far_slope = slope_at(delta_far) * sum_and_turn(two, part);
                if (at_far) to_far[d] += far_slope;
            }
        }
        #pragma unroll
        for (int k = 16; k; k >>= 1) to_q += __shfl_xor_sync(FULL, to_q, k);
        __syncwarp();
        if (lane == 0) to_keys[j] += to_q;
        __syncwarp();
    }
    __syncthreads();
    for (int s = threadIdx.x; s < last; s += THREADS) {
        float total = 0.f, far_total = 0.f;
        for (int w = 0; w < WARPS; ++w) { total += to_positions[w * length + s]; far_total += to_distances[w * length + s]; }
        if (totals) {
            if (total != 0.f) atomicAdd(totals + ((size_t)b * n_detectors + t) * length + s, total);
        } else if (total != 0.f) {
            const int* pair = anchors + 2 * (t * N_C + (keys[s] >> 16));
            atomicAdd(dx + ((size_t)b * length + s) * n_inputs + pair[0], total);
            atomicAdd(dx + ((size_t)b * length + s) * n_inputs + pair[1], -total);
        }
        if (N_PE && s < last - 1 && far_total != 0.f)
            atomicAdd(dpositions + ((size_t)s * n_detectors + t) * N_PE + (distances[s] >> 16), far_total);
    }
}
