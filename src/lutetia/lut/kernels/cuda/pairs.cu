// The gradient of LUT attention's tables. One block per detector and Q owns the CELLS table rows that Q can reach. The pairs of its
// places are put in order by a counting sort; then eight lanes add up each row's g and write it once: no atomics, no zero fill.
// A step in place visits only rows that some pair reads, whose values are on their way while the pairs are listed.
//
// A place is b · S + j; its pairs are the positions i < j, each in cell K[i] << N_PE | PE[j - i - 1].
// CELLS = 2**(N_C + N_PE) · W outputs, a multiple of 8 · PLACES at a time, at most 256 · CAP pairs of so many places · ADD to what is
// there: a step in place · BLOCKS on one multiprocessor

#include "common.cuh"

#define WARPS (THREADS / 32)
#define AT_ONCE 4  // places of a warp, whose keys are on their way together

// The places of each detector by their Q, one block per detector: index [B, N_t, S] -> order [N_t, B · S], end and count [N_t, N_Q].
extern "C" __global__ void __launch_bounds__(THREADS) sort_places(
    const int* __restrict__ index, int* __restrict__ order, int* __restrict__ end_out, int* __restrict__ count_out,
    int length, int n_places, int n_q)
{
    SHARED(int, count);          // [n_q]
    int* cursor = count + n_q;   // [n_q]
    const int t = blockIdx.x, n_detectors = gridDim.x;
    for (int q = threadIdx.x; q < n_q; q += THREADS) count[q] = 0;
    for (int round = 0; round < 2; ++round) {
        __syncthreads();
        for (int place = threadIdx.x; place < n_places; place += THREADS) {
            const int b = place / length, q = index[((size_t)b * n_detectors + t) * length + place - b * length];
            const int rank = atomicAdd((round ? cursor : count) + q, 1);
            if (round) order[(size_t)t * n_places + rank] = place;
        }
        if (round == 0) add_before(count, cursor, n_q, 0);
    }
    __syncthreads();
    for (int q = threadIdx.x; q < n_q; q += THREADS) {
        end_out[t * n_q + q] = cursor[q];
        count_out[t * n_q + q] = count[q];
    }
}

// Eight lanes add MOST of the rows of g that `entries` [many] name, from number o on, to a total.
template <int MOST>
__device__ __forceinline__ void add_entries(Part& total, const float* g, const unsigned char* entries, int many, int o, int part) {
    const int held = o + part < many ? entries[o + part] : 0;
    #pragma unroll
    for (int s = 0; s < MOST; ++s) {
        const int l = __shfl_sync(FULL, held, s, 8);
        if (o + s < many) {
            Part line;
            load(line, g + l * W, part);
            #pragma unroll
            for (int k = 0; k < EACH; ++k) total.v[k] += line.v[k];
        }
    }
}

// index [B, N_t, S] · pe [S - 1, N_t] · order [N_t, B · S], end and count [N_t, N_Q]: the places by their Q · out [N_t, N_Q, CELLS, W]
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) gather_pairs(
    const float* __restrict__ grad, const int* __restrict__ index, const int* __restrict__ pe, const int* __restrict__ order,
    const int* __restrict__ end_in, const int* __restrict__ count_in, float* __restrict__ out, float scale, int length, int n_places)
{
    SHARED(float, g);                                                      // [PLACES][W]
    int* cursor = reinterpret_cast<int*>(g + PLACES * W);                  // [CELLS]
    int* first = cursor + CELLS;                                           // [CELLS]
    short* distances = reinterpret_cast<short*>(first + CELLS);            // [S - 1], of PE, to an even number of them
    short* filled = distances + (length & ~1);                             // with ADD [CELLS]: those that have pairs
    unsigned char* entries = reinterpret_cast<unsigned char*>(filled + ADD * CELLS);  // [CAP]: places of this round, by cell
    __shared__ int n_filled;
    const int q = blockIdx.x, t = blockIdx.y, n_detectors = gridDim.y, n_q = gridDim.x;
    const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, part = tid & 7;
    const int n = count_in[t * n_q + q];
    const int* places = order + (size_t)t * n_places + end_in[t * n_q + q] - n;
    for (int d = tid; d < length - 1; d += THREADS) distances[d] = (short)pe[(size_t)d * n_detectors + t];
    float* rows = out + ((size_t)t * n_q + q) * CELLS * W;
    for (int start = 0; start == 0 || start < n; start += PLACES) {
        const int here = min(n - start, PLACES);
        for (int c = tid; c < CELLS; c += THREADS) cursor[c] = 0;
        if (tid == 0) n_filled = ADD ? 0 : CELLS;
        for (int e = tid; e < here * (W / 4); e += THREADS)
            reinterpret_cast<float4*>(g)[e] =
                reinterpret_cast<const float4*>(grad)[(size_t)places[start + e / (W / 4)] * (W / 4) + e % (W / 4)];
        for (int round = 0; round < 2; ++round) {  // count the pairs of each cell, then list them
            __syncthreads();
            for (int l0 = warp; l0 < here; l0 += AT_ONCE * WARPS) {
                const int* keys[AT_ONCE];
                int j[AT_ONCE], key[AT_ONCE], longest = 0;
                #pragma unroll
                for (int u = 0; u < AT_ONCE; ++u) {
                    const int l = l0 + u * WARPS, place = l < here ? places[start + l] : 0, b = place / length;
                    j[u] = l < here ? place - b * length : 0;
                    keys[u] = index + ((size_t)b * n_detectors + t) * length;
                    longest = max(longest, j[u]);
                }
                for (int i = lane; i < longest; i += 32) {
                    #pragma unroll
                    for (int u = 0; u < AT_ONCE; ++u) key[u] = i < j[u] ? keys[u][i] : -1;
                    #pragma unroll
                    for (int u = 0; u < AT_ONCE; ++u)
                        if (key[u] >= 0) {
                            const int rank = atomicAdd(cursor + (key[u] << N_PE | distances[j[u] - i - 1]), 1);
                            if (round) entries[rank] = (unsigned char)(l0 + u * WARPS);
                        }
                }
            }
            if (round == 0) {
                add_before(cursor, first, CELLS, 0);
                for (int c = tid; c < CELLS; c += THREADS) {
                    if (ADD && cursor[c]) {
                        fetch_ahead(rows + (size_t)c * W, W);
                        filled[atomicAdd(&n_filled, 1)] = (short)c;
                    }
                    cursor[c] = first[c];
                }
            }
        }
        __syncthreads();  // now cursor[c] is where the entries of c end
        for (int k0 = 4 * warp; k0 < n_filled; k0 += THREADS / 8) {  // all lanes stay in the loop, also past a last odd cell
            const int k = k0 + lane / 8, c = k >= n_filled ? CELLS : ADD ? filled[k] : k;
            const int begin = c < CELLS ? first[c] : 0, many = c < CELLS ? cursor[c] - begin : 0;
            Part total, before;
            #pragma unroll
            for (int k = 0; k < EACH; ++k) { total.v[k] = 0.f; before.v[k] = 0.f; }
            if ((ADD || start) && many) load(before, rows + (size_t)c * W, part);
            const int most = __reduce_max_sync(FULL, many);
            if (most <= 2) add_entries<2>(total, g, entries + begin, many, 0, part);  // most cells of short sequences are empty
            else for (int o = 0; o < most; o += 8) add_entries<8>(total, g, entries + begin, many, o, part);
            if (c >= CELLS || ((ADD || start) && !many)) continue;
            #pragma unroll
            for (int k = 0; k < EACH; ++k) total.v[k] = scale * total.v[k] + before.v[k];
            store<!ADD>(total, rows + (size_t)c * W, part);
        }
        __syncthreads();
    }
}
