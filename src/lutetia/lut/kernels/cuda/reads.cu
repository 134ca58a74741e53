// What detectors read, and the way back to the inputs. One thread per row of the batch, one block per TILE rows and segment: a run
// of detectors that share a window of at most V inputs with no others. The window of x lies in shared memory by columns.
//
// N_C pairs a detector · KIND 0 hard, 1 blend, 2 confidence, 3 confidence2 · V columns at most · TILE rows of a block

#include "common.cuh"

#define STEP (TILE + 1)  // floats of a column: odd, so that a row is spread over the banks
#define STAGED 32        // detectors whose pairs are in shared memory at a time
#define AHEAD (KIND ? 1 : 8)                // detectors whose slopes are on their way: of the hard read there is little else to do
#define BACK_STEP (KIND ? STEP : TILE)      // of dx: a hard read adds to columns that differ from lane to lane, so each has its bank

struct Scalars { float beta, gamma, tau; };

__device__ __forceinline__ Scalars scalars_of(const float* log_beta, const float* log_gamma, const float* log_tau) {
    Scalars s = {0.f, 0.f, 1.f};
    if (KIND >= 2) { s.beta = expf(*log_beta); s.gamma = expf(*log_gamma); }
    if (KIND == 3) s.tau = expf(*log_tau);
    return s;
}

// segments [n, 4]: first detector, one past the last, first input, inputs
__device__ __forceinline__ void load_window(float* columns, const float* x, const int4 segment, int row0, int n, int n_inputs) {
    if (V % 4 == 0 && (n_inputs | segment.z | segment.w) % 4 == 0) {  // sixteen bytes at a time
        #pragma unroll 4
        for (int k = 0; k < V / 4; ++k) {
            const unsigned e = k * TILE + threadIdx.x, r = e / (V / 4), c = e % (V / 4) * 4;
            const bool there = (int)c < segment.w && row0 + (int)r < n;
            const float* from = x + (size_t)(row0 + r) * n_inputs + segment.z + c;
            const float4 four = there ? *reinterpret_cast<const float4*>(from) : make_float4(0.f, 0.f, 0.f, 0.f);
            float* to = columns + c * STEP + r;
            to[0] = four.x; to[STEP] = four.y; to[2 * STEP] = four.z; to[3 * STEP] = four.w;
        }
        return;
    }
    #pragma unroll 4
    for (int k = 0; k < V; ++k) {
        const unsigned e = k * TILE + threadIdx.x, r = e / V, c = e % V;
        const bool there = (int)c < segment.w && row0 + (int)r < n;
        columns[c * STEP + r] = there ? x[(size_t)(row0 + r) * n_inputs + segment.z + c] : 0.f;
    }
}

// pairs [N_t, N_C]: where the two columns of a pair begin, in bytes, STEP floats each; staged with columns of TO floats
template <int TO = STEP> __device__ __forceinline__ void load_pairs(uint2* staged, const uint2* pairs, int first, int last) {
    __syncthreads();
    for (int e = threadIdx.x; e < STAGED * N_C; e += TILE)
        if (first + e / N_C < last) {
            const uint2 pair = pairs[(size_t)first * N_C + e];
            staged[e] = TO == STEP ? pair : make_uint2(pair.x / STEP * TO, pair.y / STEP * TO);
        }
    __syncthreads();
}

__device__ __forceinline__ void take_pairs(uint2* mine, const uint2* staged) {
    #pragma unroll
    for (int r = 0; r < N_C; ++r) {
        if (N_C % 2) mine[r] = staged[r];
        else if (r % 2 == 0) {
            const uint4 both = *reinterpret_cast<const uint4*>(staged + r);
            mine[r] = make_uint2(both.x, both.y);
            mine[(r + 1) % N_C] = make_uint2(both.z, both.w);
        }
    }
}

__device__ __forceinline__ float& at(float* columns, unsigned offset) {
    return *reinterpret_cast<float*>(reinterpret_cast<char*>(columns) + offset);
}
__device__ __forceinline__ float at(const float* columns, unsigned offset) {
    return *reinterpret_cast<const float*>(reinterpret_cast<const char*>(columns) + offset);
}

extern "C" __global__ void __launch_bounds__(TILE) read_detectors(
    const float* __restrict__ x, const uint2* __restrict__ pairs, const int4* __restrict__ segments,
    const float* log_beta, const float* log_gamma, const float* log_tau,
    int* __restrict__ index_out, int* __restrict__ other_out, float* __restrict__ a_out, float* __restrict__ b_out,
    int n, int n_inputs)
{
    SHARED(float, columns);  // [V][STEP]
    __shared__ __align__(16) uint2 staged[STAGED * N_C];
    const int4 segment = segments[blockIdx.y];
    const int row0 = blockIdx.x * TILE, row = row0 + threadIdx.x;
    const Scalars s = scalars_of(log_beta, log_gamma, log_tau);
    const float sharp = -s.beta * LOG2E, waver = -2.f / s.tau * LOG2E;
    load_window(columns, x, segment, row0, n, n_inputs);
    const float* mine = columns + threadIdx.x;
    const unsigned upper = other_out ? 0u : 0xffff0000u;  // without a place of its own the other row shares that of the first
    const size_t begin = (size_t)segment.x * n + row;
    int* to_index = index_out + begin;
    int* to_other = other_out + begin;
    float* to_a = a_out + begin;
    float* to_b = b_out + begin;
    for (int start = segment.x; start < segment.y; start += STAGED) {
        load_pairs(staged, pairs, start, segment.y);
        const int here = min(segment.y - start, STAGED);
        for (int k = 0; k < here; ++k, to_index += n, to_other += n, to_a += n, to_b += n) {
            float closest, delta, mass = 0.f, doubts = 1.f;
            unsigned index = 0, which = 0;
            uint2 pair[N_C];
            take_pairs(pair, staged + k * N_C);
            #pragma unroll
            for (int r = 0; r < N_C; ++r) {
                const float u = at(mine, pair[r].x) - at(mine, pair[r].y), size = fabsf(u);
                index |= u > 0.f ? 1u << r : 0u;
                if (r == 0 || size < closest) { closest = size; delta = u; which = r; }
                if (KIND >= 2) { mass += size; doubts *= 1.f + exp2_fast(sharp * size); }
            }
            const unsigned other = index ^ 1u << which;
            if (row >= n) continue;
            *to_index = KIND == 1 || KIND == 3 ? index | (other << 16 & upper) : index;
            if (KIND == 0) {  // what was found for training: the margin, and its bit
                if (a_out) { *to_a = delta; *to_other = which; }
            } else {
                float a = 1.f, b = 0.f;
                if (KIND == 1) { b = 0.5f / (1.f + closest); a = 1.f - b; }
                if (KIND >= 2) a = mass * exp2_fast(-s.gamma * log2_fast(doubts));
                if (KIND == 3) {
                    const float e = exp2_fast(waver * closest), v = __fdividef(e, 1.f + e);
                    b = a * v;
                    a = a * (1.f - v);
                }
                *to_a = a;
                if (KIND != 2) *to_b = b;
                if (KIND != 2 && other_out) *to_other = other;
            }
        }
    }
}

struct Found { float gain, other_gain; int which; };

__device__ __forceinline__ Found found_at(const float* da, const float* db, const int* which, size_t place) {
    return {da[place], KIND == 1 || KIND == 3 ? db[place] : 0.f, KIND == 0 ? which[place] : 0};
}

// dx of a window is added up in shared memory, by the one thread that owns the row. Of the hard read da is the slope
// itself; `shares` [blocks · warps, 3] take what goes to the learned scalars.
extern "C" __global__ void __launch_bounds__(TILE) send_slopes(
    const float* __restrict__ x, const uint2* __restrict__ pairs, const int4* __restrict__ segments,
    const float* log_beta, const float* log_gamma, const float* log_tau,
    const float* __restrict__ da, const float* __restrict__ db, const int* __restrict__ which_in,
    float* __restrict__ dx, float* __restrict__ shares, int n, int n_inputs)
{
    SHARED(float, columns);  // [V][STEP] of dx, then of x
    __shared__ __align__(16) uint2 staged[STAGED * N_C];
    float* inputs = columns + V * STEP;
    const int4 segment = segments[blockIdx.y];
    const int row0 = blockIdx.x * TILE, row = row0 + threadIdx.x;
    const Scalars s = scalars_of(log_beta, log_gamma, log_tau);
    const float sharp = -s.beta * LOG2E, waver = -2.f / s.tau * LOG2E;
    if (KIND) load_window(inputs, x, segment, row0, n, n_inputs);
    for (int e = threadIdx.x; e < V * BACK_STEP; e += TILE) columns[e] = 0.f;
    float* mine = inputs + threadIdx.x;
    float* into = columns + threadIdx.x;
    float to_beta = 0.f, to_gamma = 0.f, to_tau = 0.f;
    const size_t place = min(row, n - 1);
    Found next[AHEAD];
    #pragma unroll
    for (int k = 0; k < AHEAD; ++k) next[k] = found_at(da, db, which_in, (size_t)min(segment.x + k, segment.y - 1) * n + place);
    for (int t = segment.x; t < segment.y; t += AHEAD) {
        const int k = (t - segment.x) % STAGED;
        if (k == 0) load_pairs<BACK_STEP>(staged, pairs, t, segment.y);
        Found found[AHEAD];
        #pragma unroll
        for (int a = 0; a < AHEAD; ++a) {  // the next ones are on their way while these are worked on
            found[a] = next[a];
            if (t + AHEAD < segment.y) next[a] = found_at(da, db, which_in, (size_t)min(t + AHEAD + a, segment.y - 1) * n + place);
        }
        if (KIND == 0) {
            #pragma unroll
            for (int a = 0; a < AHEAD; ++a)
                if (t + a < segment.y) {
                    const uint2 pair = staged[(k + a) * N_C + found[a].which];
                    at(into, pair.x) += found[a].gain;
                    at(into, pair.y) -= found[a].gain;
                }
            continue;
        }
        const Found now = found[0];
        const float gain = now.gain, other_gain = now.other_gain;
        float u[N_C], doubt[N_C], closest, mass = 0.f, doubts = 1.f, moment = 0.f;
        unsigned which = 0;
        uint2 pair[N_C];
        take_pairs(pair, staged + k * N_C);
        #pragma unroll
        for (int r = 0; r < N_C; ++r) {
            u[r] = at(mine, pair[r].x) - at(mine, pair[r].y);
            const float size = fabsf(u[r]);
            if (r == 0 || size < closest) { closest = size; which = r; }
            if (KIND >= 2) {
                const float e = exp2_fast(sharp * size);
                mass += size;
                doubts *= 1.f + e;
                doubt[r] = __fdividef(e, 1.f + e);
                moment += size * doubt[r];
            }
        }
        float nearest = 0.f, plain = 0.f, doubtful = 0.f;
        if (KIND == 1) { const float near_ = 1.f + closest; nearest = (gain - other_gain) * 0.5f / (near_ * near_); }
        if (KIND >= 2) {
            const float evidence = log2_fast(doubts), power = exp2_fast(-s.gamma * evidence), all = mass * power;
            float ds = gain;
            if (KIND == 3) {
                const float e = exp2_fast(waver * closest), v = __fdividef(e, 1.f + e);
                const float dv = all * (other_gain - gain) * v * (1.f - v) * 2.f / s.tau;
                ds = gain * (1.f - v) + other_gain * v;
                nearest = -dv;
                if (row < n) to_tau += dv * closest;
            }
            if (row < n) {
                to_beta += ds * all * s.gamma * s.beta * moment;
                to_gamma -= ds * all * s.gamma * evidence * (1.f / LOG2E);
            }
            plain = ds * power;
            doubtful = plain * mass * s.gamma * s.beta;
        }
        #pragma unroll
        for (int r = 0; r < N_C; ++r) {
            if (KIND == 1 && which != r) continue;
            float slope = which == r ? nearest : 0.f;
            if (KIND >= 2) slope += plain + doubtful * doubt[r];
            slope = u[r] > 0.f ? slope : -slope;
            at(into, pair[r].x) += slope;
            at(into, pair[r].y) -= slope;
        }
    }
    __syncthreads();
    if (dx && KIND == 0 && (n_inputs | segment.z | segment.w) % 4 == 0) {
        float4* to = reinterpret_cast<float4*>(dx + (size_t)row * n_inputs + segment.z);
        for (int c = 0; c < segment.w && row < n; c += 4)
            to[c / 4] = make_float4(into[c * TILE], into[(c + 1) * TILE], into[(c + 2) * TILE], into[(c + 3) * TILE]);
    } else if (dx)
        for (int e = threadIdx.x; e < TILE * V; e += TILE) {
            const int r = e / V, c = e % V;
            if (c < segment.w && row0 + r < n) dx[(size_t)(row0 + r) * n_inputs + segment.z + c] = columns[c * BACK_STEP + r];
        }
    if (KIND < 2) return;
    #pragma unroll
    for (int k = 16; k; k >>= 1) {
        to_beta += __shfl_xor_sync(FULL, to_beta, k);
        to_gamma += __shfl_xor_sync(FULL, to_gamma, k);
        to_tau += __shfl_xor_sync(FULL, to_tau, k);
    }
    if (threadIdx.x % 32 == 0) {
        float* share = shares + 3 * ((blockIdx.y * gridDim.x + blockIdx.x) * (TILE / 32) + threadIdx.x / 32);
        share[0] = to_beta; share[1] = to_gamma; share[2] = to_tau;
    }
}
