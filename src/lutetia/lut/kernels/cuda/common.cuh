// What the sources of this folder share. B rows of a batch, N_t detectors; what detectors found is kept by detector, [N_t, B]:
// neighbouring lanes are neighbouring rows of the batch.

#define FULL 0xffffffffu
#define LOG2E 1.4426950408889634f

#ifdef __CUDACC__  // what only a GPU knows; the tests run the rest on a CPU, with their own versions of these
#define SHARED(type, name) extern __shared__ type name[]

__device__ __forceinline__ float exp2_fast(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ float log2_fast(float x) { float y; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

__device__ __forceinline__ void copy_async(float4* to, const float4* from) {
    const unsigned place = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(place), "l"(from));
}
// Bring n floats to the second-level cache, for the loads that follow later.
__device__ __forceinline__ void fetch_ahead(const float* from, int n) {
    for (int k = 0; k < n; k += 32) asm volatile("prefetch.global.L2 [%0];\n" ::"l"(from + k));
}
__device__ __forceinline__ void close_group() { asm volatile("cp.async.commit_group;\n"); }
template <int MANY> __device__ __forceinline__ void wait_for_all_but() { asm volatile("cp.async.wait_group %0;\n" ::"n"(MANY)); }
__device__ __forceinline__ void wait_for_team(int team, int n) { asm volatile("bar.sync %0, %1;\n" ::"r"(team + 1), "r"(n) : "memory"); }
#endif

// A row of W floats (W a multiple of 8) lies over 8 lanes: whole 128-byte lines first, 16 bytes a lane, then what is left.
#ifdef W
#define LINES (W / 32)
#define PAIRED (W % 32 / 16)
#define SINGLE (W % 16 / 8)
#define EACH (W / 8)  // floats of a lane

struct Part { float v[EACH]; };

__device__ __forceinline__ void load(Part& to, const float* row, int part) {
    #pragma unroll
    for (int k = 0; k < LINES; ++k) {
        const float4 four = *reinterpret_cast<const float4*>(row + 32 * k + 4 * part);
        to.v[4 * k] = four.x; to.v[4 * k + 1] = four.y; to.v[4 * k + 2] = four.z; to.v[4 * k + 3] = four.w;
    }
    if (PAIRED) {
        const float2 two = *reinterpret_cast<const float2*>(row + 32 * LINES + 2 * part);
        to.v[(4 * LINES) % EACH] = two.x; to.v[(4 * LINES + 1) % EACH] = two.y;
    }
    if (SINGLE) to.v[EACH - 1] = row[W - 8 + part];
}

// PASSING: nothing reads it soon, so that it need not stay in the cache.
template <bool PASSING = false> __device__ __forceinline__ void store(const Part& from, float* row, int part) {
    #pragma unroll
    for (int k = 0; k < LINES; ++k) {
        const float4 four = make_float4(from.v[4 * k], from.v[4 * k + 1], from.v[4 * k + 2], from.v[4 * k + 3]);
        float4* to = reinterpret_cast<float4*>(row + 32 * k + 4 * part);
        if (PASSING) __stcs(to, four);
        else *to = four;
    }
    if (PAIRED)
        *reinterpret_cast<float2*>(row + 32 * LINES + 2 * part) =
            make_float2(from.v[(4 * LINES) % EACH], from.v[(4 * LINES + 1) % EACH]);
    if (SINGLE) row[W - 8 + part] = from.v[EACH - 1];
}

__device__ __forceinline__ void add_atomic(const Part& from, float* row, int part) {
#if __CUDA_ARCH__ >= 900
    #pragma unroll
    for (int k = 0; k < LINES; ++k)
        atomicAdd(reinterpret_cast<float4*>(row + 32 * k + 4 * part),
                  make_float4(from.v[4 * k], from.v[4 * k + 1], from.v[4 * k + 2], from.v[4 * k + 3]));
    if (PAIRED)
        atomicAdd(reinterpret_cast<float2*>(row + 32 * LINES + 2 * part),
                  make_float2(from.v[(4 * LINES) % EACH], from.v[(4 * LINES + 1) % EACH]));
#else
    #pragma unroll
    for (int k = 0; k < 4 * LINES; ++k) atomicAdd(row + 32 * (k / 4) + 4 * part + k % 4, from.v[k]);
    #pragma unroll
    for (int k = 0; k < 2 * PAIRED; ++k) atomicAdd(row + 32 * LINES + 2 * part + k, from.v[(4 * LINES + k) % EACH]);
#endif
    if (SINGLE) atomicAdd(row + W - 8 + part, from.v[EACH - 1]);
}
#endif

// v[s] of eight lanes, summed over the lanes: lane s gets the sum of v[s].
__device__ __forceinline__ float sum_and_turn(const float* v, int part) {
    float four[4], two[2];
    #pragma unroll
    for (int k = 0; k < 4; ++k)
        four[k] = (part & 4 ? v[4 + k] : v[k]) + __shfl_xor_sync(FULL, part & 4 ? v[k] : v[4 + k], 4);
    #pragma unroll
    for (int k = 0; k < 2; ++k)
        two[k] = (part & 2 ? four[2 + k] : four[k]) + __shfl_xor_sync(FULL, part & 2 ? four[k] : four[2 + k], 2);
    return (part & 1 ? two[1] : two[0]) + __shfl_xor_sync(FULL, part & 1 ? two[0] : two[1], 1);
}

// U'(delta), the slope of a blend at a margin
__device__ __forceinline__ float slope_at(float delta) {
    const float near_ = 1.f + fabsf(delta);
    return (delta > 0.f ? 0.5f : -0.5f) / (near_ * near_);
}

// first[c] = Σ count[0 .. c - 1] for c < n, by all THREADS threads of a team; both may be the same. Waits for all before and after.
// TEAMS of a block work side by side, each with barriers of its own: while one waits, another adds.
#ifdef THREADS
#ifndef TEAMS
#define TEAMS 1
#endif
#define WAIT_FOR_TEAM (TEAMS == 1 ? __syncthreads() : wait_for_team(team, THREADS))
__device__ __forceinline__ void add_before(const int* count, int* first, int n, int team) {
    __shared__ int of_warps[TEAMS * THREADS / 32];
    const int tid = threadIdx.x - team * THREADS, lane = tid & 31, warp = tid >> 5, run = (n + THREADS - 1) / THREADS;
    const int begin = min(tid * run, n), end = min(begin + run, n);
    int mine = 0, *sums = of_warps + team * (THREADS / 32);
    WAIT_FOR_TEAM;
    for (int c = begin; c < end; ++c) mine += count[c];
    int scan = mine;
    #pragma unroll
    for (int d = 1; d < 32; d <<= 1) { const int v = __shfl_up_sync(FULL, scan, d); if (lane >= d) scan += v; }
    if (lane == 31) sums[warp] = scan;
    WAIT_FOR_TEAM;
    int start = scan - mine;
    for (int w = 0; w < warp; ++w) start += sums[w];
    for (int c = begin; c < end; ++c) { const int many = count[c]; first[c] = start; start += many; }
    WAIT_FOR_TEAM;
}
#endif
