// The tiles of all rows of the batch in one line: what a block shares, how the line is cut, and the list of a block's next tiles.

#include "tensor_cores.cuh"

#define KEYS 64
#define CHUNK 8192  // bytes: 64 keys of 64 numbers
#define CHUNKS 8    // that values are in, too; keys have one more
#define HELD 7      // chunks of queries in registers
#define STAGES 3
#define TILE (CHUNKS * CHUNK)
#define LASTS (STAGES * TILE)        // [2][CHUNK]: the last numbers of keys, then weights
#define QUERIES (LASTS + 2 * CHUNK)  // [2][CHUNK]: the last numbers of queries
#define REST (QUERIES + 2 * CHUNK)
#define VALUES 512
#define ROWS 64
#define LEAST_TILES 4  // of a piece, where there is a choice
#define TOGETHER 8     // pieces that are added at once
#define LOOK 8         // tiles that are listed
#define GROWTH 8.f     // what weights may grow to, in base 2, before sums are scaled anew
#define SCORER 184     // registers of a thread
#define ADDER 160
#define LN2 0.6931471805599453f
#define INFINITE __int_as_float(0x7f800000)

enum { FIRST = 1, LAST = 2, THERE = 4 };

struct alignas(16) Task { int row, begin, end, flags; };  // of the batch; keys [begin, begin + 64) before end

// The tile that is listed next: its place in the line and where this block's range stops; its row, where that begins in the line,
// how many tiles it has and which keys, [low, high); and how many tiles are left of the piece.
struct alignas(16) Walk { int place, stop, row, begin, tiles, low, high, left; };

struct Shared {
    u64 full[STAGES], lasts[2], weighed[2], scored[2];
    Task tasks[LOOK];
    int2 places[LOOK];           // in the line: of the tile, and of its row
    float most[STAGES + 2][ROWS], total[STAGES + 1][ROWS];  // m and l with each tile: the adders need that before it, too
    Walk walk;
    int cut, padded, arrived;
};

static_assert(sizeof(Shared) <= 3072, "more than is left of shared memory");

struct Call {
    const unsigned short* q;
    unsigned short* cache;
    const int* seq_lens;
    const int* starts;
    const int* page_table;
    const unsigned short* fresh;
    unsigned short* out;
    float* lse;
    float* partial_acc;
    float* partial_ml;
    int* arrived;
    float factor;
    int batch, rows, s_active, capacity;
    int q_b, q_h, q_a, k_o, k_s, new_b, new_a, page_len, table_b;
};

__device__ __forceinline__ int ratio_up(int a, int b) { return (a + b - 1) / b; }

__device__ __forceinline__ int length_of(const Call& call, int b) { return max(min(call.seq_lens[b], call.capacity), 0); }
__device__ __forceinline__ int low_of(const Call& call, int b, int length) {
    return call.starts ? min(max(call.starts[b], 0), length) : 0;
}
__device__ __forceinline__ int tiles_of(const Call& call, int b) {  // a row without keys has a tile, too: something must write its result
    const int length = length_of(call, b);
    return max(ratio_up(length - low_of(call, b, length), KEYS), 1);
}

__device__ __forceinline__ int in_line(int tiles, int cut, bool padded) { return padded ? ratio_up(tiles, cut) * cut : tiles; }

// Begin with a row.
__device__ __forceinline__ void enter(Walk& walk, const Call& call) {
    walk.high = length_of(call, walk.row);
    walk.low = low_of(call, walk.row, walk.high);
    walk.tiles = max(ratio_up(walk.high - walk.low, KEYS), 1);
}

// The line, by one warp: how it is cut, and the row in which this block's range begins.
__device__ void lay_out(Shared& shared, const Call& call, int lane) {
    int total = 0, longest = 0;
    for (int b = lane; b < call.batch; b += 32) {
        const int tiles = tiles_of(call, b);
        total += FIXED ? ratio_up(tiles, max(FIXED, 1)) : tiles;
        longest = max(longest, tiles);
    }
    total = __reduce_add_sync(FULL, total);
    longest = __reduce_max_sync(FULL, longest);
    const int groups = gridDim.y;
    int cut = FIXED, range = ratio_up(total, groups) * FIXED;
    bool padded = true;
    if (!FIXED) {
        const int even = max(ratio_up(total, groups), LEAST_TILES), each = groups / call.batch;
        cut = max(each ? ratio_up(longest, each) : longest, LEAST_TILES);
        range = each ? cut : cut * ratio_up(call.batch, groups);
        padded = 16 * range <= 17 * even + 64;  // whole rows, or equal parts of them, where that is not much longer
        if (!padded) cut = range = even;
    }
    Walk walk = {(int)blockIdx.y * range, 0, call.batch, 0, 0, 0, 0, cut};
    int begin = 0;
    for (int b0 = 0; b0 < call.batch; b0 += 32) {
        const int b = b0 + lane, tiles = b < call.batch ? in_line(tiles_of(call, b), cut, padded) : 0;
        int sum = tiles;
        for (int step = 1; step < 32; step *= 2) {
            const int before = __shfl_up_sync(FULL, sum, step);
            if (lane >= step) sum += before;
        }
        sum += begin;
        if (sum - tiles <= walk.place && walk.place < sum) {
            shared.walk.row = b;
            shared.walk.begin = sum - tiles;
        }
        begin = __shfl_sync(FULL, sum, 31);
    }
    __syncwarp();
    if (lane == 0) {
        walk.stop = min(walk.place + range, begin);
        if (walk.place < walk.stop) {
            walk.row = shared.walk.row;
            walk.begin = shared.walk.begin;
            enter(walk, call);
        }
        shared.walk = walk;
        shared.cut = cut;
        shared.padded = padded;
    }
    __syncwarp();
}

// List the next tile of this block's range.
__device__ __forceinline__ void list_next(Shared& shared, const Call& call, int number) {
    Task task = {0, 0, 0, 0};
    Walk walk = shared.walk;
    while (walk.place < walk.stop) {
        const int tile = walk.place - walk.begin;
        if (tile >= walk.tiles) {  // the next row
            walk.place = walk.begin += in_line(walk.tiles, shared.cut, shared.padded);
            if (shared.padded) walk.left = shared.cut;
            ++walk.row;
            if (walk.place < walk.stop) enter(walk, call);
            continue;
        }
        const bool begins = tile == 0 || walk.left == shared.cut, ends = tile == walk.tiles - 1 || walk.left == 1;
        task = {walk.row, walk.low + tile * KEYS, walk.high, THERE | (begins ? FIRST : 0) | (ends ? LAST : 0)};
        shared.places[number % LOOK] = make_int2(walk.place++, walk.begin);
        if (--walk.left == 0) walk.left = shared.cut;
        break;
    }
    shared.walk = walk;
    shared.tasks[number % LOOK] = task;
}
