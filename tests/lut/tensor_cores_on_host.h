// The instructions of attention/cuda/tensor_cores.cuh on a CPU, after on_host.h: products are made at once, in bfloat16, and a matrix
// in shared memory is read where the hardware would look for it.

extern "C" { float fmaxf(float, float); }

struct int2 { int x, y; };
static inline int2 make_int2(int x, int y) { return {x, y}; }
static inline float __int_as_float(int i) { float f; memcpy(&f, &i, 4); return f; }
static inline void __threadfence() {}
template <class T> static T __ldcg(const T* from) { return *from; }
static inline int __any_sync(unsigned, int v) { return __reduce_max_sync(0u, v != 0); }
static inline int __reduce_add_sync(unsigned, int v) {
    for (int k = 16; k; k >>= 1) v += __shfl_xor_sync(0u, v, k);
    return v;
}

#define memory shared_memory
static inline unsigned tiles_at() { return 0; }
static inline unsigned bf16_of(float x) {
    const unsigned u = __float_as_uint(x);
    return x != x ? 0x7fc0u : (u + 0x7fffu + (u >> 16 & 1u)) >> 16;
}
static inline unsigned pair_of(float low, float high) { return bf16_of(low) | bf16_of(high) << 16; }
static inline float number_at(unsigned place) {
    place ^= (place >> 7 & 7) << 4;
    unsigned short bits;
    memcpy(&bits, shared_memory + place, 2);
    return __uint_as_float((unsigned)bits << 16);
}

struct Counter { short size, left; unsigned round; };
static inline Counter& counter_at(unsigned place) { return *reinterpret_cast<Counter*>(shared_memory + place); }
static inline void make_barrier(unsigned place, int arrivals) { counter_at(place) = {(short)arrivals, (short)arrivals, 0}; }
static inline void show_barriers() {}
static inline void arrive(unsigned place) {
    Counter& counter = counter_at(place);
    ++moves;
    if (--counter.left == 0) { counter.left = counter.size; ++counter.round; }
}
static inline void arrive_after_copies(unsigned place) { arrive(place); }
static inline void wait_for(unsigned place, int parity) {
    while ((int)(counter_at(place).round & 1) == parity) { threads[now].gate = nullptr; leave(); }
}
template <int TEAM, int THREADS> static void wait_for_team() { wait_for_team(TEAM, THREADS); }
static inline void show_to_products() {}
template <int TO, int FROM> static void copy_async(unsigned to, const void* from, bool there) {
    if (there) memcpy(shared_memory + to + TO, static_cast<const char*>(from) + FROM, 16);
    else memset(shared_memory + to + TO, 0, 16);
}
static inline void wait_for_copies() {}
static inline void prefetch(const void* from) { volatile char there = *static_cast<const char*>(from); (void)there; }
static inline void store_shared(unsigned to, unsigned value) { memcpy(shared_memory + to, &value, 4); }
template <int MANY> static void more_registers() {}
template <int MANY> static void fewer_registers() {}
static inline void begin_products() {}
static inline void commit_products() {}
static inline void wait_for_products() { __syncwarp(); }

static inline unsigned matrix_at(unsigned place, unsigned wide) { return wide >> 4 << 16 | (place >> 4 & 0x3fff); }
static inline unsigned start_of(unsigned matrix) { return (matrix & 0x3fff) << 4; }
static float left_side[MOST / 32][16][16];  // of each warp: its 16 rows

// x [16, N] of a warp, as it lies over its lanes: rows lane / 4 and 8 more, columns 8 j + 2 (lane % 4).
template <int N> static void multiply(float* x, unsigned b, bool columns, int add) {
    const int lane = now % 32, row = lane / 4;
    __syncwarp();
    for (int j = 0; j < N / 2; ++j) {
        const int n = j / 4 * 8 + 2 * (lane % 4) + j % 2, m = row + (j & 2) * 4;
        float sum = add ? x[j] : 0.f;
        for (int k = 0; k < 16; ++k) {
            const unsigned at = columns ? start_of(b) + n / 64 * ((b >> 16) << 4) + k / 8 * 1024 + k % 8 * 128 + n % 64 * 2
                                        : start_of(b) + n / 8 * 1024 + n % 8 * 128 + k * 2;
            sum += left_side[now / 32][m][k] * number_at(at);
        }
        x[j] = sum;
    }
    __syncwarp();
}
static inline void multiply_64(float (&x)[32], const unsigned (&a)[4], unsigned b, int add) {
    const int row = now % 32 / 4, part = now % 4;
    for (int k = 0; k < 8; ++k)
        left_side[now / 32][row + k / 2 % 2 * 8][2 * part + k % 2 + k / 4 * 8] =
            __uint_as_float(k % 2 ? a[k / 2] & 0xffff0000u : a[k / 2] << 16);
    multiply<64>(x, b, false, add);
}
static inline void load_left(unsigned a) {
    const int lane = now % 32, row = lane / 2, m = now / 32 % 4 * 16 + row;
    for (int k = lane % 2 * 8; k < lane % 2 * 8 + 8; ++k)
        left_side[now / 32][row][k] = number_at(start_of(a) + m / 8 * 1024 + m % 8 * 128 + k * 2);
}
static inline void multiply_64(float (&x)[32], unsigned a, unsigned b, int add) { load_left(a); multiply<64>(x, b, false, add); }
static inline void multiply_256(float (&x)[128], unsigned a, unsigned b, int add) { load_left(a); multiply<256>(x, b, true, add); }
