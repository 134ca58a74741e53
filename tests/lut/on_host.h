// Enough of CUDA to run the sources of lutetia.lut.kernels.cuda on a CPU: the threads of a block take turns, each on a stack of its
// own, and change only where they wait for each other. Slow, and exact about barriers: a thread that misses one is an error.
// Few headers: most of the time that a source takes to compile here is theirs.
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <utility>

extern "C" { float exp2f(float); float log2f(float); float expf(float); float fabsf(float); float fmaf(float, float, float); }

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
struct Thread { ucontext_t start; jmp_buf at; Gate* gate = nullptr; unsigned round = 0; bool started = false, done = false; };
enum { MOST = 1024, STACK = 1 << 16 };  // threads of a block, and bytes of the stack of each
static Thread threads[MOST];
static Gate warps[MOST / 32], teams[16];
static unsigned long long slots[MOST];
static Gate block;
static jmp_buf scheduler;
static int now;
static long moves;

// Jumps, which leave the signals alone: swapcontext would ask the kernel twice for each change of threads.
static __attribute__((noinline)) void resume() {
    Thread& thread = threads[now];
    if (_setjmp(scheduler)) return;
    if (thread.started) _longjmp(thread.at, 1);
    thread.started = true;
    setcontext(&thread.start);
}
static __attribute__((noinline)) void leave() { if (!_setjmp(threads[now].at)) _longjmp(scheduler, 1); }

static inline void wait_at(Gate& gate) {
    const unsigned round = gate.round;
    ++moves;
    if (++gate.arrived == gate.size) { gate.arrived = 0; ++gate.round; return; }
    threads[now].gate = &gate;
    threads[now].round = round;
    leave();
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
static void enter() { body(); threads[now].done = true; --block.size; --warps[now / 32].size; leave(); }

// Run a kernel block after block; the arguments are pointers to the values, as the driver takes them. 0 when all went well.
template <class... A> static int launch(void (*f)(A...), const unsigned* grid, int n_threads, int shared, void** arguments) {
    static void (*kernel)(A...);
    static void** given;
    kernel = f;
    given = arguments;
    body = [] { call(kernel, given, std::index_sequence_for<A...>{}); };
    if (n_threads > MOST) return 2;
    char* stacks = static_cast<char*>(malloc((size_t)n_threads * STACK));
    shared_memory = static_cast<char*>(aligned_alloc(16, (shared + 31) / 16 * 16));
    int stuck = 0;
    blockDim = {(unsigned)n_threads, 1, 1};
    gridDim = {grid[0], grid[1], grid[2]};
    for (blockIdx.z = 0; blockIdx.z < grid[2]; ++blockIdx.z)
        for (blockIdx.y = 0; blockIdx.y < grid[1]; ++blockIdx.y)
            for (blockIdx.x = 0; blockIdx.x < grid[0] && !stuck; ++blockIdx.x) {
                memset(shared_memory, 0xff, shared);  // NaN: nobody may count on zeros
                memset(slots, 0, sizeof slots);
                for (Gate& warp : warps) warp = Gate{32};
                for (Gate& team : teams) team = Gate{0};
                block = Gate{n_threads};
                for (int i = 0; i < n_threads; ++i) {
                    threads[i] = {};
                    ucontext_t& start = threads[i].start;
                    getcontext(&start);
                    start.uc_stack.ss_sp = stacks + (size_t)i * STACK;
                    start.uc_stack.ss_size = STACK;
                    start.uc_link = nullptr;
                    makecontext(&start, enter, 0);
                }
                for (int left = n_threads; left && !stuck;) {
                    const long before = moves;
                    left = 0;
                    for (now = 0; now < n_threads; ++now) {
                        const Thread& thread = threads[now];
                        if (thread.done) continue;
                        if (!thread.gate || thread.gate->round != thread.round) {
                            threadIdx = {(unsigned)now, 0, 0};
                            resume();
                        }
                        left += !thread.done;
                    }
                    stuck = left && moves == before;  // all wait for each other
                }
            }
    free(stacks);
    free(shared_memory);
    return stuck;
}
