// Enough of CUDA to run the sources of lutetia.lut.kernels.cuda on a CPU: the threads of a block take turns, each on a stack of its
// own, and change only where they wait for each other. Slow, and exact about barriers: a thread that misses one is an error.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))

struct Dim { unsigned x, y, z; };
struct int4 { int x, y, z, w; };
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
static Dim threadIdx, blockIdx, blockDim, gridDim;
static char* shared_memory;
#define SHARED(type, name) type* name = reinterpret_cast<type*>(shared_memory)

static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T> static T min(T a, T b) { return a < b ? a : b; }
template <class T> static T max(T a, T b) { return a > b ? a : b; }
static inline unsigned __float_as_uint(float f) { unsigned u; memcpy(&u, &f, 4); return u; }
static inline float __uint_as_float(unsigned u) { float f; memcpy(&f, &u, 4); return f; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float exp2_fast(float x) { return exp2f(x); }
static inline float log2_fast(float x) { return log2f(x); }
static inline void copy_async(float4* to, const float4* from) { *to = *from; }
static inline void close_group() {}
static inline void fetch_ahead(const float*, int) {}
template <int MANY> static void wait_for_all_but() {}
template <class T> static T atomicAdd(T* to, T value) { T before = *to; *to = before + value; return before; }
static inline void __stcs(float4* to, float4 value) { *to = value; }

struct Gate { int size, arrived = 0; unsigned round = 0; };  // opens when all of its threads wait
static std::vector<ucontext_t> threads;
static std::vector<bool> done;
static std::vector<Gate> warps, teams;
static std::vector<unsigned long long> slots;
static Gate block;
static ucontext_t scheduler;
static int now;
static long moves;

static inline void wait_at(Gate& gate) {
    const unsigned round = gate.round;
    ++moves;
    if (++gate.arrived == gate.size) { gate.arrived = 0; ++gate.round; return; }
    while (gate.round == round) swapcontext(&threads[now], &scheduler);
}
static inline void __syncthreads() { wait_at(block); }
static inline void wait_for_team(int team, int n) { teams[team].size = n; wait_at(teams[team]); }
static inline void __syncwarp() { wait_at(warps[now / 32]); }
template <class T> static T exchange(T value, int from) {
    const int mine = now;
    memcpy(&slots[mine], &value, sizeof(T));
    wait_at(warps[mine / 32]);
    T got;
    memcpy(&got, &slots[mine / 32 * 32 + from], sizeof(T));
    wait_at(warps[mine / 32]);
    return got;
}
template <class T> static T __shfl_sync(unsigned, T v, int s, int width = 32) {
    const int lane = now % 32;
    return exchange(v, lane / width * width + (s & (width - 1)));
}
template <class T> static T __shfl_xor_sync(unsigned, T v, int mask) { return exchange(v, (now % 32) ^ mask); }
template <class T> static T __shfl_up_sync(unsigned, T v, int d) { const int lane = now % 32; return exchange(v, lane >= d ? lane - d : lane); }
static inline int __reduce_max_sync(unsigned, int v) {
    for (int k = 16; k; k >>= 1) { const int other = __shfl_xor_sync(0u, v, k); v = other > v ? other : v; }
    return v;
}

template <class... A, size_t... N> static void call(void (*f)(A...), void** arguments, std::index_sequence<N...>) {
    f(*static_cast<A*>(arguments[N])...);
}
static void (*body)();
static void enter() { body(); done[now] = true; --block.size; --warps[now / 32].size; swapcontext(&threads[now], &scheduler); }

// Run a kernel block after block; the arguments are pointers to the values, as the driver takes them. 0 when all went well.
template <class... A> static int launch(void (*f)(A...), const unsigned* grid, int n_threads, int shared, void** arguments) {
    static void (*kernel)(A...);
    static void** given;
    kernel = f;
    given = arguments;
    body = [] { call(kernel, given, std::index_sequence_for<A...>{}); };
    std::vector<char> stacks((size_t)n_threads << 16), memory(shared + 16);
    shared_memory = memory.data() + (16 - (size_t)memory.data() % 16) % 16;
    blockDim = {(unsigned)n_threads, 1, 1};
    gridDim = {grid[0], grid[1], grid[2]};
    for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < grid[0]; ++blockIdx.x) {
                memset(shared_memory, 0xff, shared);  // NaN: nobody may count on zeros
                threads.assign(n_threads, {});
                done.assign(n_threads, false);
                slots.assign(n_threads, 0);
                warps.assign((n_threads + 31) / 32, Gate{32});
                teams.assign(16, Gate{0});
                block = Gate{n_threads};
                for (int i = 0; i < n_threads; ++i) {
                    getcontext(&threads[i]);
                    threads[i].uc_stack.ss_sp = stacks.data() + ((size_t)i << 16);
                    threads[i].uc_stack.ss_size = 1 << 16;
                    threads[i].uc_link = &scheduler;
                    makecontext(&threads[i], enter, 0);
                }
                for (int left = n_threads; left;) {
                    const long before = moves;
                    left = 0;
                    for (now = 0; now < n_threads; ++now)
                        if (!done[now]) {
                            threadIdx = {(unsigned)now, 0, 0};
                            swapcontext(&scheduler, &threads[now]);
                            left += !done[now];
                        }
                    if (left && moves == before) return 1;  // all wait for each other
                }
            }
    return 0;
}
