// What only a GPU of compute capability 9.x has: matrix products of a warp group, asynchronous copies, and barriers that count.

#define FULL 0xffffffffu
typedef unsigned long long u64;

#ifdef __CUDACC__  // the tests run the rest on a CPU, with their own versions of these
#if BF16
#define PAIR "bf16"
#else
#define PAIR "f16"
#endif

__device__ __forceinline__ float exp2_fast(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ float log2_fast(float x) { float y; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

// Two numbers in 16 bits each, the first in the lower half.
__device__ __forceinline__ unsigned pair_of(float low, float high) {
    unsigned pair;
    asm("cvt.rn." PAIR "x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

extern __shared__ __align__(1024) unsigned char memory[];

// The address of shared memory, asked for again wherever it is used: the compiler then knows that all lanes have the same, and keeps
// it, and what describes matrices, in registers that they share.
__device__ __forceinline__ unsigned tiles_at() { unsigned place; asm volatile("mov.u32 %0, memory;" : "=r"(place)); return place; }

// ---- barriers: `place` is an address in shared memory

__device__ __forceinline__ void make_barrier(unsigned place, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(place), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(unsigned place) {
    asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(place) : "memory");
}
// When all copies that this thread began are there.
__device__ __forceinline__ void arrive_after_copies(unsigned place) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(place) : "memory");
}
__device__ __forceinline__ void wait_for(unsigned place, int parity) {
    asm volatile(
        "{ .reg .pred there;\n"
        "again: mbarrier.try_wait.parity.shared.b64 there, [%0], %1;\n"
        "@!there bra again; }" ::"r"(place), "r"(parity) : "memory");
}
template <int TEAM, int THREADS> __device__ __forceinline__ void wait_for_team() {
    asm volatile("bar.sync %0, %1;" ::"n"(TEAM), "n"(THREADS) : "memory");
}
// What threads wrote to shared memory is seen by matrix products from here on.
__device__ __forceinline__ void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// 16 bytes, or zeros; both places are this many bytes further.
template <int TO, int FROM> __device__ __forceinline__ void copy_async(unsigned to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0+%3], [%1+%4], 16, %2;"
                 ::"r"(to), "l"(from), "r"(there ? 16 : 0), "n"(TO), "n"(FROM) : "memory");
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Bring 128 bytes to the second-level cache.
__device__ __forceinline__ void prefetch(const void* from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }
__device__ __forceinline__ void store_shared(unsigned to, unsigned value) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(value) : "memory");
}

template <int MANY> __device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(MANY)); }
template <int MANY> __device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(MANY)); }

// ---- products of a warp group: 128 threads, 64 rows

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

// A matrix in shared memory whose rows of 128 bytes have their 16-byte pieces p of row r at p ^ (r & 7), groups of eight rows 1024
// bytes apart: the lower half of what describes it. `wide` is the distance of blocks of 64 columns, where columns are what is
// multiplied out. The same in all lanes, and the compiler is told so.
__device__ __forceinline__ unsigned matrix_at(unsigned place, unsigned wide) {
    return __shfl_sync(FULL, wide >> 4 << 16 | (place >> 4 & 0x3fff), 0);
}
#define DESCRIBED(name, half) ".reg .b64 " #name "; mov.b64 " #name ", {" half ", 0x40000040};\n"

#define F4(x, i) "+f"(x[i]), "+f"(x[i + 1]), "+f"(x[i + 2]), "+f"(x[i + 3])
#define F32(x, i) F4(x, i), F4(x, i + 4), F4(x, i + 8), F4(x, i + 12), F4(x, i + 16), F4(x, i + 20), F4(x, i + 24), F4(x, i + 28)
#define T32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define T64 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60," \
    "%61,%62,%63"
#define T96 "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92," \
    "%93,%94,%95"
#define T128 "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119," \
    "%120,%121,%122,%123,%124,%125,%126,%127"

// x [64, 64] = (or, with `add`, +=) a [64, 16], in registers, times b [16, 64]; b has its rows, of 64 columns each, transposed.
__device__ __forceinline__ void multiply_64(float (&x)[32], const unsigned (&a)[4], unsigned b, int add) {
    asm volatile(
        "{ .reg .pred add; setp.ne.b32 add, %37, 0;\n" DESCRIBED(b, "%36")
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." PAIR "." PAIR " {" T32 "}, {%32,%33,%34,%35}, b, add, 1, 1, 0; }"
        : F32(x, 0) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(add));
}
// The same with a in shared memory.
__device__ __forceinline__ void multiply_64(float (&x)[32], unsigned a, unsigned b, int add) {
    asm volatile(
        "{ .reg .pred add; setp.ne.b32 add, %34, 0;\n" DESCRIBED(a, "%32") DESCRIBED(b, "%33")
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." PAIR "." PAIR " {" T32 "}, a, b, add, 1, 1, 0, 0; }"
        : F32(x, 0) : "r"(a), "r"(b), "r"(add));
}
// x [64, 256] = (or +=) a [64, 16] times b [16, 256], both in shared memory.
__device__ __forceinline__ void multiply_256(float (&x)[128], unsigned a, unsigned b, int add) {
    asm volatile(
        "{ .reg .pred add; setp.ne.b32 add, %130, 0;\n" DESCRIBED(a, "%128") DESCRIBED(b, "%129")
        "wgmma.mma_async.sync.aligned.m64n256k16.f32." PAIR "." PAIR " {" T32 "," T64 "," T96 "," T128 "}, a, b, add, 1, 1, 0, 1; }"
        : F32(x, 0), F32(x, 32), F32(x, 64), F32(x, 96) : "r"(a), "r"(b), "r"(add));
}
#endif
