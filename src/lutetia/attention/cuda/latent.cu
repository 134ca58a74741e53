// Attention of many query rows over keys of 576 numbers whose first 512 are the value: the absorbed form of latent attention.
//
// A block has 64 query rows (query heads times new tokens) and goes through tiles of 64 keys, three of them in shared memory. One
// warp group, the scorer, holds most of the queries in registers; it makes scores and weights. Two others, the adders, each add up
// one half of the values' columns, and fetch keys. Weights take the place of the last 64 numbers of their keys, which only scores
// need.
//
// The tiles of all rows of the batch stand in one line, cut into pieces; a group of blocks, one for each 64 query rows, takes its
// range of the line, so that blocks beside each other read the same keys at the same time. The block that finishes a row's last
// piece adds the pieces up, eight at a time. Scores are kept in base 2.
//
// BF16: else float16 · PAGED · FIXED: pieces of so many tiles, whatever the batch; or 0
//
// The adders wait for the next tile's scores, so that these are not held up by their products: measured, 6% faster.

#include "pieces.cuh"

// ---- the scorer

__device__ __forceinline__ const unsigned short* query_at(const Call& call, int b, int r) {
    return call.q + (long long)b * call.q_b + (long long)(r / call.s_active) * call.q_h + (long long)(r % call.s_active) * call.q_a;
}

// Query rows `row` and `row` + 8 of a block, as the product of a warp group wants them, and the last numbers of all of them.
__device__ __forceinline__ void load_queries(unsigned (&queries)[4 * HELD][4], unsigned last, const Call& call, int b, int thread) {
    const int part = thread & 3, row = (thread >> 5) * 16 + (thread >> 2 & 7);
    const unsigned sign = call.factor < 0.f ? 0x80008000u : 0u;
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int r = blockIdx.x * ROWS + row + 8 * half;
        const unsigned short* from = query_at(call, b, r) + 2 * part;
        #pragma unroll
        for (int k = 0; k < 72; ++k) {
            const unsigned value = r < call.rows ? *reinterpret_cast<const unsigned*>(from + 8 * k) ^ sign : 0u;
            if (k < 8 * HELD) queries[k / 2 % (4 * HELD)][half + 2 * (k % 2)] = value;
            else store_shared(last + (k / 8 - HELD) * CHUNK + (row + 8 * half) * 128 + ((k % 8 ^ (row & 7)) << 4) + 4 * part, value);
        }
    }
}

__device__ __forceinline__ float largest_of_four(float x) {
    x = fmaxf(x, __shfl_xor_sync(FULL, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL, x, 2));
}
__device__ __forceinline__ float sum_of_four(float x) {
    x += __shfl_xor_sync(FULL, x, 1);
    return x + __shfl_xor_sync(FULL, x, 2);
}

__device__ __forceinline__ void score(Shared& shared, const Call& call) {
    const int thread = threadIdx.x;
    unsigned queries[4 * HELD][4];
    float scores[32];
    #pragma unroll 1
    for (int number = 0, stage = 0, parity = 0;; ++number) {
        const int flags = __shfl_sync(FULL, shared.tasks[number % LOOK].flags, 0);
        if (!(flags & THERE)) break;
        const unsigned tiles = tiles_at(), barriers = tiles + REST;
        if (flags & FIRST) {
            load_queries(queries, tiles + QUERIES, call, shared.tasks[number % LOOK].row, thread);
            show_to_products();
            wait_for_team<2, 128>();
        }
        wait_for(barriers + 8 * stage, parity);
        show_to_products();
        const unsigned lasts = tiles + LASTS + number % 2 * CHUNK;
        const unsigned keys = matrix_at(tiles + stage * TILE, 0), last_keys = matrix_at(lasts, 0);
        const unsigned rest = matrix_at(tiles + QUERIES, 0);
        begin_products();
        #pragma unroll
        for (int k = 0; k < 4 * HELD; ++k) multiply_64(scores, queries[k], keys + (k / 4 * CHUNK + k % 4 * 32) / 16, k > 0);
        #pragma unroll
        for (int k = 0; k < 4; ++k) multiply_64(scores, rest + 2 * k, keys + (HELD * CHUNK + k * 32) / 16, 1);
        commit_products();
        if (thread == 0) list_next(shared, call, number + STAGES);
        wait_for(barriers + 8 * (STAGES + number % 2), number / 2 % 2);
        show_to_products();
        begin_products();
        #pragma unroll
        for (int k = 0; k < 4; ++k) multiply_64(scores, rest + CHUNK / 16 + 2 * k, last_keys + 2 * k, 1);
        commit_products();
        wait_for_products();
        wait_for_team<2, 128>();  // all have read this tile, and what was listed is seen
        if (thread == 0) arrive(barriers + 8 * (STAGES + 4 + number % 2));
        const int part = thread & 3, row = (thread >> 5) * 16 + (thread >> 2 & 7);
        const Task task = shared.tasks[number % LOOK];
        if (task.begin + KEYS > task.end - call.s_active + 1) {
            #pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int token = (blockIdx.x * ROWS + row + 8 * half) % call.s_active;
                const int seen = task.end - call.s_active + token + 1 - task.begin - 2 * part;
                #pragma unroll
                for (int k = 0; k < 16; ++k)
                    if (k / 2 * 8 + k % 2 >= seen) scores[k / 2 * 4 + 2 * half + k % 2] = -INFINITE;
            }
        }
        const float factor = fabsf(call.factor);
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int own = row + 8 * half;
            float most = -INFINITE, total = 0.f, best = -INFINITE;
            if (!(flags & FIRST)) {
                most = shared.most[(number - 1) % (STAGES + 2)][own];
                total = shared.total[(number - 1) % (STAGES + 1)][own];
            }
            #pragma unroll
            for (int k = 0; k < 8; ++k) best = fmaxf(best, fmaxf(scores[4 * k + 2 * half], scores[4 * k + 2 * half + 1]));
            best = largest_of_four(best) * factor;
            if (best > most + GROWTH) {  // less is no reason to touch the sums: weights may be larger than one
                total *= exp2_fast(most - best);
                most = best;
            }
            const float offset = most == -INFINITE ? 0.f : -most;
            const unsigned weights = lasts + own * 128 + ((row & 7) << 4) + 4 * part;
            float sum = 0.f;
            #pragma unroll
            for (int k = 0; k < 8; ++k) {
                const float one = exp2_fast(fmaf(scores[4 * k + 2 * half], factor, offset));
                const float two = exp2_fast(fmaf(scores[4 * k + 2 * half + 1], factor, offset));
                sum += one + two;
                store_shared(weights ^ k << 4, pair_of(one, two));
            }
            total += sum_of_four(sum);
            if (part == 0) {
                shared.most[number % (STAGES + 2)][own] = most;
                shared.total[number % (STAGES + 1)][own] = total;
            }
        }
        show_to_products();
        arrive(barriers + 8 * (STAGES + 2 + number % 2));
        if (++stage == STAGES) { stage = 0; parity ^= 1; }
    }
}

// ---- the adders

// Where a key is, in numbers from the beginning of the cache.
__device__ __forceinline__ long long place_of(const Call& call, int b, int position, int page) {
    return PAGED ? (long long)page * call.k_o + (long long)(position % call.page_len) * call.k_s
                 : (long long)b * call.k_o + (long long)position * call.k_s;
}
__device__ __forceinline__ int page_of(const Call& call, const Task& task, int position) {
    return PAGED && (task.flags & THERE) && position < task.end
        ? call.page_table[(long long)task.row * call.table_b + position / call.page_len] : 0;
}

// 16 bytes of each of the chunks [C, END).
template <int C, int END> __device__ __forceinline__ void copy_line(unsigned to, const unsigned short* from, bool there) {
    copy_async<C * CHUNK, C * 128>(to, from, there);
    if constexpr (C + 1 < END) copy_line<C + 1, END>(to, from, there);
}

// New keys of a tile are not in the cache yet: they are fetched from where they are, and written into it.
template <int C, int MANY>
__device__ __forceinline__ const unsigned short* fresh_key(
    const Call& call, const Task& task, int position, const unsigned short* cached, int piece)
{
    const int fresh = position - (task.end - call.s_active);
    if (fresh < 0 || position >= task.end) return cached;
    const unsigned short* from = call.fresh + (long long)task.row * call.new_b + (long long)fresh * call.new_a + 64 * C + 8 * piece;
    int4* to = reinterpret_cast<int4*>(const_cast<unsigned short*>(cached));
    #pragma unroll 1
    for (int c = 0; c < (blockIdx.x == 0 ? MANY : 0); ++c) to[8 * c] = reinterpret_cast<const int4*>(from)[8 * c];
    return from;
}

// Fetch MANY chunks of a tile, from number C on, 256 threads, for whoever waits at `barrier`.
template <int C, int MANY>
__device__ __forceinline__ void fetch(
    const Call& call, const Task task, unsigned tile, int thread, const int (&pages)[2], unsigned barrier)
{
    const int piece = thread & 7, position = task.begin + (thread >> 3);
    const unsigned short* first = call.cache + place_of(call, task.row, position, pages[0]) + 64 * C + 8 * piece;
    const unsigned short* second = PAGED ? call.cache + place_of(call, task.row, position + 32, pages[1]) + 64 * C + 8 * piece
                                         : first + (long long)32 * call.k_s;
    if (call.fresh && task.begin + KEYS > task.end - call.s_active) {
        first = fresh_key<C, MANY>(call, task, position, first, piece);
        second = fresh_key<C, MANY>(call, task, position + 32, second, piece);
    }
    const bool there = position < task.end, there_too = position + 32 < task.end;
    const unsigned to = tile + (thread >> 3) * 128 + ((piece ^ (thread >> 3 & 7)) << 4);
    if (MANY > 1) {
        copy_line<0, (MANY + 1) / 2>(to, first, there);
        copy_line<0, (MANY + 1) / 2>(to + 32 * 128, second, there_too);
    }
    copy_line<MANY / 2, MANY>(to, first, there);
    copy_line<MANY / 2, MANY>(to + 32 * 128, second, there_too);
    arrive_after_copies(barrier);
    if (MANY > 1 && piece == 0) {  // the last numbers of the keys will be asked for later, and needed soon after
        if (there) prefetch(first + VALUES);
        if (there_too) prefetch(second + VALUES);
    }
}

__device__ __forceinline__ void clear(float (&sums)[128]) {
    #pragma unroll
    for (int k = 0; k < 128; ++k) sums[k] = 0.f;
}

__device__ __forceinline__ void add(Shared& shared, const Call& call) {
    const int thread = threadIdx.x - 128;
    float sums[128];
    int pages[2] = {0, 0}, last_pages[2];
    clear(sums);
    #pragma unroll 1
    for (int number = 0; number < STAGES; ++number) {
        const Task task = shared.tasks[number];
        if (!(task.flags & THERE)) break;
        const unsigned tiles = tiles_at(), barriers = tiles + REST;
        pages[0] = page_of(call, task, task.begin + (thread >> 3));
        pages[1] = page_of(call, task, task.begin + (thread >> 3) + 32);
        if (number < 2)
            fetch<CHUNKS, 1>(call, task, tiles + LASTS + number * CHUNK, thread, pages, barriers + 8 * (STAGES + number));
        fetch<0, CHUNKS>(call, task, tiles + number * TILE, thread, pages, barriers + 8 * number);
    }
    #pragma unroll 1
    for (int number = 0, stage = 0;; ++number) {
        const int flags = __shfl_sync(FULL, shared.tasks[number % LOOK].flags, 0);
        if (!(flags & THERE)) break;
        const unsigned tiles = tiles_at(), barriers = tiles + REST;
        wait_for(barriers + 8 * (STAGES + 2 + number % 2), number / 2 % 2);
        if (PAGED) {  // asked for now, they are there when they are used
            const Task next = shared.tasks[(number + STAGES) % LOOK];
            last_pages[0] = pages[0];
            last_pages[1] = pages[1];
            pages[0] = page_of(call, next, next.begin + (thread >> 3));
            pages[1] = page_of(call, next, next.begin + (thread >> 3) + 32);
        }
        if (shared.tasks[(number + 1) % LOOK].flags & THERE)
            wait_for(barriers + 8 * (STAGES + 4 + (number + 1) % 2), (number + 1) / 2 % 2);
        if (!(flags & FIRST)) {
            const int row = (thread >> 5 & 3) * 16 + (thread >> 2 & 7);
            const float* now = shared.most[number % (STAGES + 2)] + row;
            const float* before = shared.most[(number - 1) % (STAGES + 2)] + row;
            if (__any_sync(FULL, now[0] != before[0] || now[8] != before[8])) {
                const float one = now[0] == before[0] ? 1.f : exp2_fast(before[0] - now[0]);
                const float two = now[8] == before[8] ? 1.f : exp2_fast(before[8] - now[8]);
                #pragma unroll
                for (int k = 0; k < 128; ++k) sums[k] *= k & 2 ? two : one;
            }
        }
        const unsigned tile = tiles + stage * TILE, lasts = tiles + LASTS + number % 2 * CHUNK;
        const unsigned weights = matrix_at(lasts, 0), values = matrix_at(tile + (thread >> 7) * 4 * CHUNK, CHUNK);
        show_to_products();
        begin_products();
        #pragma unroll
        for (int k = 0; k < 4; ++k) multiply_256(sums, weights + k * 2, values + k * 128, k > 0 || !(flags & FIRST));
        commit_products();
        wait_for_products();
        wait_for_team<1, 256>();  // both halves have read this tile
        if (shared.tasks[(number + 2) % LOOK].flags & THERE)
            fetch<CHUNKS, 1>(call, shared.tasks[(number + 2) % LOOK], lasts, thread, last_pages,
                             barriers + 8 * (STAGES + number % 2));
        if (shared.tasks[(number + STAGES) % LOOK].flags & THERE)
            fetch<0, CHUNKS>(call, shared.tasks[(number + STAGES) % LOOK], tile, thread, pages, barriers + 8 * stage);
        if (flags & LAST) {
            write_sums(shared, call, sums, number, thread);
            join(shared, call, number, thread);
            clear(sums);  // so that it may use their registers
        }
        stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
    wait_for_copies();
}

// q [B, H, s, 576] · cache [B, 1, S, 576], or pages [n, page_len, 1, 576] · fresh [B, 1, s, 576] · out [B, H, s, 512] · lse [B, H, s]
// partial_acc [slots, blocks, 64, 512] · partial_ml [slots, blocks, 2, 64] · arrived: a zero for each row and slot, times blocks
extern "C" __global__ void __launch_bounds__(384, 1) attend_latent(
    const unsigned short* q, unsigned short* cache, const int* seq_lens, const int* starts, const int* page_table,
    const unsigned short* fresh, unsigned short* out, float* lse, float* partial_acc, float* partial_ml, int* arrived,
    float factor, int batch, int rows, int s_active, int capacity,
    int q_b, int q_h, int q_a, int k_o, int k_s, int new_b, int new_a, int page_len, int table_b)
{
    Shared& shared = *reinterpret_cast<Shared*>(memory + REST);
    const Call call = {q, cache, seq_lens, starts, page_table, fresh, out, lse, partial_acc, partial_ml, arrived, factor,
                       batch, rows, s_active, capacity, q_b, q_h, q_a, k_o, k_s, new_b, new_a, page_len, table_b};
    const unsigned tiles = tiles_at();
    if (threadIdx.x < 32) lay_out(shared, call, threadIdx.x);
    if (threadIdx.x == 0) {
        for (int number = 0; number < STAGES; ++number) list_next(shared, call, number);
        for (int number = 0; number < STAGES; ++number) {
            make_barrier(tiles + REST + 8 * number, 256);
            if (number == 2) continue;
            make_barrier(tiles + REST + 8 * (STAGES + number), 256);
            make_barrier(tiles + REST + 8 * (STAGES + 2 + number), 128);
            make_barrier(tiles + REST + 8 * (STAGES + 4 + number), 1);
        }
        show_barriers();
    }
    __syncthreads();
    if (threadIdx.x < 128) {
        more_registers<SCORER>();
        score(shared, call);
    } else {
        fewer_registers<ADDER>();
        add(shared, call);
    }
}
