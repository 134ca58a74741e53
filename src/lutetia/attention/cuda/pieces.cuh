// The results of pieces: written by the adders, and added up by the block that finishes a row's last one.

#include "line.cuh"

// Up to eight pieces of a row, on their way together.
struct Part { float m[TOGETHER], l[TOGETHER]; float4 sums[TOGETHER]; };

__device__ __forceinline__ void load(Part& part, const float* ml, const float4* sums, long long apart, int many) {
    #pragma unroll
    for (int k = 0; k < TOGETHER; ++k) {
        part.m[k] = k < many ? __ldcg(ml + k * apart * 2 * ROWS) : -INFINITE;
        part.l[k] = k < many ? __ldcg(ml + k * apart * 2 * ROWS + ROWS) : 0.f;
        part.sums[k] = k < many ? __ldcg(sums + k * apart * ROWS * (VALUES / 4)) : make_float4(0.f, 0.f, 0.f, 0.f);
    }
}

struct Total { float m = -INFINITE, l = 0.f; float4 sums = {0.f, 0.f, 0.f, 0.f}; };

__device__ __forceinline__ void add_part(Total& total, const Part& part) {
    float most = total.m;
    #pragma unroll
    for (int k = 0; k < TOGETHER; ++k) most = fmaxf(most, part.m[k]);
    const float offset = most == -INFINITE ? 0.f : -most, before = exp2_fast(total.m + offset);
    total.m = most;
    total.l *= before;
    total.sums = {total.sums.x * before, total.sums.y * before, total.sums.z * before, total.sums.w * before};
    #pragma unroll
    for (int k = 0; k < TOGETHER; ++k) {
        const float weight = exp2_fast(part.m[k] + offset);
        total.l = fmaf(weight, part.l[k], total.l);
        total.sums.x = fmaf(weight, part.sums[k].x, total.sums.x);
        total.sums.y = fmaf(weight, part.sums[k].y, total.sums.y);
        total.sums.z = fmaf(weight, part.sums[k].z, total.sums.z);
        total.sums.w = fmaf(weight, part.sums[k].w, total.sums.w);
    }
}

// The sum of `many` pieces, `apart` slots from each other, into the first of them or, with `done`, out and lse; 256 threads.
__device__ __forceinline__ void add_pieces(const Call& call, int slot, int apart, int many, int b, bool done, int thread) {
    const long long step = (long long)apart * gridDim.x, mine = (long long)slot * gridDim.x + blockIdx.x;
    const int column = thread & 127, rows = min(call.rows - (int)blockIdx.x * ROWS, ROWS);
    #pragma unroll 1
    for (int first = thread >> 7; first < ROWS; first += 4) {
        Total totals[2];
        Part parts[2];
        #pragma unroll 1
        for (int begin = 0; begin < many; begin += TOGETHER) {
            #pragma unroll
            for (int k = 0; k < 2; ++k) {
                const int row = first + 2 * k;
                load(parts[k], call.partial_ml + (mine + begin * step) * 2 * ROWS + row,
                     reinterpret_cast<const float4*>(call.partial_acc) + ((mine + begin * step) * ROWS + row) * (VALUES / 4) + column,
                     step, row < rows ? many - begin : 0);
            }
            add_part(totals[0], parts[0]);
            add_part(totals[1], parts[1]);
        }
        if (!done) wait_for_team<1, 256>();  // every thread has read m and l of these rows
        #pragma unroll
        for (int k = 0; k < 2; ++k) {
            const int row = first + 2 * k;
            const Total& total = totals[k];
            if (row >= rows) continue;
            if (done) {
                const float share = total.l != 0.f ? 1.f / total.l : 0.f;  // a NaN among the keys must show
                const long long at = (long long)b * call.rows + blockIdx.x * ROWS + row;
                reinterpret_cast<uint2*>(call.out)[at * (VALUES / 4) + column] = make_uint2(
                    pair_of(total.sums.x * share, total.sums.y * share), pair_of(total.sums.z * share, total.sums.w * share));
                if (column == 0) call.lse[at] = total.l != 0.f ? (total.m + log2_fast(total.l)) * LN2 : -INFINITE;
            } else {
                reinterpret_cast<float4*>(call.partial_acc)[(mine * ROWS + row) * (VALUES / 4) + column] = total.sums;
                if (column == 0) {
                    call.partial_ml[mine * 2 * ROWS + row] = total.m;
                    call.partial_ml[(mine * 2 + 1) * ROWS + row] = total.l;
                }
            }
        }
    }
}

// Whether this block is the last of `many` that come here; 256 threads, whose writes the last one sees.
__device__ __forceinline__ bool is_last(Shared& shared, int* counter, int many, int thread) {
    __threadfence();
    wait_for_team<1, 256>();
    if (thread == 0) {
        shared.arrived = atomicAdd(counter, 1);
        if (shared.arrived == many - 1) *counter = 0;  // as it was, for the next launch
        __threadfence();
    }
    wait_for_team<1, 256>();
    const bool last = shared.arrived == many - 1;
    wait_for_team<1, 256>();
    return last;
}

// How a piece stands among those of its row.
struct Piece { int row, slot, number, many; };

__device__ __forceinline__ Piece piece_of(const Shared& shared, const Call& call, int number) {
    const int row = shared.tasks[number % LOOK].row, cut = shared.cut;
    const int2 places = shared.places[number % LOOK];
    const int first = places.y / cut, many = (places.y + tiles_of(call, row) - 1) / cut - first + 1;
    return {row, first + row, places.x / cut - first, many};
}

// A piece is done: write the sums of one half of the columns, as results or for others to add.
__device__ __forceinline__ void write_sums(Shared& shared, const Call& call, const float (&sums)[128], int number, int thread) {
    const Piece piece = piece_of(shared, call, number);
    const long long mine = (long long)(piece.slot + piece.number) * gridDim.x + blockIdx.x;
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int own = (thread >> 5 & 3) * 16 + (thread >> 2 & 7) + 8 * half, r = blockIdx.x * ROWS + own;
        const int column = (thread >> 7) * (VALUES / 2) + 2 * (thread & 3);
        if (r >= call.rows) continue;
        const float most = shared.most[number % (STAGES + 2)][own], total = shared.total[number % (STAGES + 1)][own];
        if (piece.many == 1) {
            const long long at = (long long)piece.row * call.rows + r;
            if (column == 0) call.lse[at] = total != 0.f ? (most + log2_fast(total)) * LN2 : -INFINITE;
            const float share = total != 0.f ? 1.f / total : 0.f;  // a NaN among the keys must show
            unsigned* to = reinterpret_cast<unsigned*>(call.out + at * VALUES + column);
            #pragma unroll
            for (int k = 0; k < 32; ++k) to[4 * k] = pair_of(sums[4 * k + 2 * half] * share, sums[4 * k + 2 * half + 1] * share);
        } else {
            if (column == 0) {
                call.partial_ml[mine * 2 * ROWS + own] = most;
                call.partial_ml[mine * 2 * ROWS + ROWS + own] = total;
            }
            float2* to = reinterpret_cast<float2*>(call.partial_acc + (mine * ROWS + own) * VALUES + column);
            #pragma unroll
            for (int k = 0; k < 32; ++k) to[4 * k] = make_float2(sums[4 * k + 2 * half], sums[4 * k + 2 * half + 1]);
        }
    }
}

// The pieces of a row, if this one was the last: in order, eight of them, then these sums. Whichever finished first, the result is
// the same.
__device__ __forceinline__ void join(Shared& shared, const Call& call, int number, int thread) {
    const Piece piece = piece_of(shared, call, number);
    if (piece.many == 1) return;
    const int node = piece.number / TOGETHER * TOGETHER, inside = min(piece.many - node, TOGETHER);
    const int nodes = ratio_up(piece.many, TOGETHER);
    int* counters = call.arrived + blockIdx.x;
    if (!is_last(shared, counters + (long long)(call.batch + piece.slot + node) * gridDim.x, inside, thread)) return;
    add_pieces(call, piece.slot + node, 1, inside, piece.row, nodes == 1, thread);
    if (nodes == 1 || !is_last(shared, counters + (long long)piece.row * gridDim.x, nodes, thread)) return;
    add_pieces(call, piece.slot, TOGETHER, nodes, piece.row, true, thread);
}
