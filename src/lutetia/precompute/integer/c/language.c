/* ---- the network: compare, look up, add ------------------------------------------------------------------------------ */

/* The stream times the gains of a norm: v is doubled, and added where the gain has that bit. The upper half of the bits has a sum
   of its own, so that both are narrow. */
static void scale(const int32_t *x, int norm, compared_t *s)
{
    int c;
    for (c = 0; c < WIDTH; c++)
        s[c] = x[c];
#if GAIN_BITS
    if (HAS_GAINS[norm]) {
        half_t v[WIDTH], low[WIDTH], high[WIDTH];
        int bit;
        for (c = 0; c < WIDTH; c++) {
            v[c] = x[c];
            low[c] = v[c] & GAINS[norm][0][c];
            high[c] = v[c] & GAINS[norm][HALF][c];
        }
        for (bit = 1; bit < HALF; bit++) {
            for (c = 0; c < WIDTH; c++) {
                v[c] += v[c];
                low[c] += v[c] & GAINS[norm][bit][c];
                if (bit + HALF < GAIN_BITS)
                    high[c] += v[c] & GAINS[norm][bit + HALF][c];
            }
        }
        for (c = 0; c < WIDTH; c++) {
            s[c] = (compared_t)((unsigned_t)high[c] << HALF) + low[c];
            s[c] = (s[c] ^ GAINS[norm][GAIN_BITS][c]) - GAINS[norm][GAIN_BITS][c];
        }
    }
#else
    (void)norm;
#endif
}

/* The index of each detector: bit r is the answer of its pair r. */
static void detect(const compared_t *s, const LUTETIA_FLASH anchor_t *pair, int detectors, int anchors, index_t *indices)
{
    int t, r;
    for (t = 0; t < detectors; t++) {
        unsigned long index = 0;
        for (r = 0; r < anchors; r++, pair += 2)
            index |= (unsigned long)(s[pair[0]] > s[pair[1]]) << r;
        indices[t] = (index_t)index;
    }
}

static void add(int32_t *sum, const LUTETIA_FLASH table_t *row)
{
    int c;
    for (c = 0; c < WIDTH; c++)
        sum[c] += row[c];
}

static void take(int32_t *sum, const LUTETIA_FLASH table_t *row)
{
    int c;
    for (c = 0; c < WIDTH; c++)
        sum[c] -= row[c];
}

/* A sum in the units of the stream. Shifted without a sign, since C leaves shifts of negative numbers open. */
static void join(int32_t *x, const int32_t *sum, int shift)
{
    int c;
    for (c = 0; c < WIDTH; c++)
        x[c] += (int32_t)((uint32_t)sum[c] << shift);
}

static const LUTETIA_FLASH table_t *cell(int layer, int t, index_t query, index_t key, int distance)
{
    unsigned long row = (unsigned long)query << (ANCHORS + POSITION_BITS) | (unsigned long)key << POSITION_BITS;
    return ATTENTION[layer][t][row | POSITIONS[layer][distance - 1][t]];
}

/* What the positions before it add to position j. */
static void attend(lutetia_state *state, int layer, int j, int32_t *sum)
{
    int i, t;
    for (i = 0; i < j; i++) {
        for (t = 0; t < DETECTORS; t++)
            add(sum, cell(layer, t, state->keys[layer][j][t], state->keys[layer][i][t], j - i));
    }
}

static void feed_forward(int layer, int32_t *x, index_t *rows, int32_t *sum)
{
    compared_t s[WIDTH];
    int t, c;
    scale(x, layer + layer + 1, s);
    detect(s, FF_PAIRS[layer], FF_DETECTORS, FF_ANCHORS, rows);
    for (c = 0; c < WIDTH; c++)
        sum[c] = 0;
    for (t = 0; t < FF_DETECTORS; t++)
        add(sum, FEED_FORWARD[layer][t][rows[t]]);
    join(x, sum, FF_SHIFTS[layer]);
}

/* The same where rows and sum are those of a stream much like x: few rows are others. */
static void feed_forward_again(int layer, int32_t *x, index_t *rows, int32_t *sum)
{
    compared_t s[WIDTH];
    index_t found[FF_DETECTORS];
    int t;
    scale(x, layer + layer + 1, s);
    detect(s, FF_PAIRS[layer], FF_DETECTORS, FF_ANCHORS, found);
    for (t = 0; t < FF_DETECTORS; t++) {
        if (found[t] != rows[t]) {
            take(sum, FEED_FORWARD[layer][t][rows[t]]);
            add(sum, FEED_FORWARD[layer][t][found[t]]);
            rows[t] = found[t];
        }
    }
    join(x, sum, FF_SHIFTS[layer]);
}

static void embed(const lutetia_state *state, int j, int32_t *x)
{
    int32_t row[WIDTH];
    int c;
    for (c = 0; c < WIDTH; c++) {
        row[c] = EMBEDDING[state->bytes[j]][c];
        x[c] = 0;
    }
    join(x, row, EMBEDDING_SHIFT);
}

static void find_key(lutetia_state *state, int layer, int j, index_t *key)
{
    compared_t s[WIDTH];
    scale(state->stream[j], layer + layer, s);
    detect(s, PAIRS[layer], DETECTORS, ANCHORS, key);
}

/* Position j through all blocks; the positions before it have been there. */
static void step(lutetia_state *state, int j)
{
    int layer, c;
    embed(state, j, state->stream[j]);
    for (layer = 0; layer < LAYERS; layer++) {
        int kept = layer < LAYERS - 1 || LAYERS == 1;
        index_t last_rows[FF_DETECTORS];
        int32_t last_seen[WIDTH], last_fed[WIDTH], *seen = kept ? state->seen[layer][j] : last_seen;
        for (c = 0; c < WIDTH; c++)
            seen[c] = 0;
        find_key(state, layer, j, state->keys[layer][j]);
        attend(state, layer, j, seen);
        join(state->stream[j], seen, SHIFTS[layer]);
        feed_forward(layer, state->stream[j], kept ? state->rows[layer][j] : last_rows, kept ? state->fed[layer][j] : last_fed);
    }
}

/* Position j has another key: what it saw, and what later positions saw of it, changes with it. */
static void replace(lutetia_state *state, int layer, int j, int t, index_t key, int n)
{
    index_t old = state->keys[layer][j][t];
    int i;
    for (i = 0; i < j; i++) {
        take(state->seen[layer][j], cell(layer, t, old, state->keys[layer][i][t], j - i));
        add(state->seen[layer][j], cell(layer, t, key, state->keys[layer][i][t], j - i));
    }
    for (i = j + 1; i < n; i++) {
        take(state->seen[layer][i], cell(layer, t, state->keys[layer][i][t], old, i - j));
        add(state->seen[layer][i], cell(layer, t, state->keys[layer][i][t], key, i - j));
    }
    state->keys[layer][j][t] = key;
}

/* The oldest byte leaves a full window. All but the last block then have the sums of the positions that stay. */
static void slide(lutetia_state *state)
{
    int layer, j, t, n = CONTEXT - 1;
    for (j = 0; j < n; j++)
        state->bytes[j] = state->bytes[j + 1];
    for (j = 0; j < n; j++)
        embed(state, j, state->stream[j]);
    for (layer = 0; layer < LAYERS; layer++) {
        index_t gone[DETECTORS], key[DETECTORS];
        int last = layer == LAYERS - 1;
        memcpy(gone, state->keys[layer][0], sizeof gone);
        memmove(state->keys[layer][0], state->keys[layer][1], sizeof state->keys[layer] - sizeof gone);
        if (!last) {
            memmove(state->seen[layer][0], state->seen[layer][1], sizeof state->seen[layer] - sizeof state->seen[layer][0]);
            memmove(state->fed[layer][0], state->fed[layer][1], sizeof state->fed[layer] - sizeof state->fed[layer][0]);
            memmove(state->rows[layer][0], state->rows[layer][1], sizeof state->rows[layer] - sizeof state->rows[layer][0]);
            for (j = 0; j < n; j++) {
                for (t = 0; t < DETECTORS; t++)
                    take(state->seen[layer][j], cell(layer, t, state->keys[layer][j][t], gone[t], j + 1));
            }
        }
        for (j = 0; j < n && layer; j++) { /* the keys of the first block follow from the bytes alone */
            find_key(state, layer, j, key);
            for (t = 0; t < DETECTORS; t++) {
                if (last)
                    state->keys[layer][j][t] = key[t];
                else if (key[t] != state->keys[layer][j][t])
                    replace(state, layer, j, t, key[t], n);
            }
        }
        for (j = 0; j < n && !last; j++) {
            join(state->stream[j], state->seen[layer][j], SHIFTS[layer]);
            feed_forward_again(layer, state->stream[j], state->rows[layer][j], state->fed[layer][j]);
        }
    }
    state->length = n;
}

static void score(const lutetia_state *state, int32_t *scores)
{
    compared_t s[WIDTH];
    index_t rows[LAST_DETECTORS];
    int t, c;
    scale(state->stream[state->length - 1], LAYERS + LAYERS, s);
    detect(s, LAST_PAIRS, LAST_DETECTORS, LAST_ANCHORS, rows);
    for (c = 0; c < VOCAB; c++)
        scores[c] = 0;
    for (t = 0; t < LAST_DETECTORS; t++) {
        const LUTETIA_FLASH table_t *row = UNEMBEDDING[t][rows[t]];
        for (c = 0; c < VOCAB; c++)
            scores[c] += row[c];
    }
}

static int greatest(const int32_t *scores)
{
    int c, best = 0;
    for (c = 1; c < VOCAB; c++) {
        if (scores[c] > scores[best])
            best = c;
    }
    return best;
}

/* ---- the interface --------------------------------------------------------------------------------------------------- */

void lutetia_reset(lutetia_state *state)
{
    state->length = 0;
}

int lutetia_put(lutetia_state *state, int byte)
{
    if (byte < 0 || byte >= VOCAB)
        return -1;
    if (state->length == CONTEXT)
        slide(state);
    state->bytes[state->length] = (uint8_t)byte;
    step(state, state->length);
    state->length++;
    return 0;
}

int lutetia_best(const lutetia_state *state)
{
    int32_t scores[VOCAB];
    if (!state->length)
        return -1;
    score(state, scores);
    return greatest(scores);
}

static uint32_t draw(uint32_t *generator)
{
    uint32_t s = *generator ? *generator : 2463534242u;
    s ^= s << 13;
    s ^= s >> 17;
    s ^= s << 5;
    return *generator = s;
}

int lutetia_draw(const lutetia_state *state, uint32_t *generator)
{
    int32_t scores[VOCAB], weights[VOCAB], best;
    uint32_t total = 0, mask = 0, r;
    int c;
    if (!state->length)
        return -1;
    score(state, scores);
    best = scores[greatest(scores)];
    for (c = 0; c < VOCAB; c++) {
        int32_t d = (best - scores[c]) >> DROP;
        weights[c] = d < N_WEIGHTS ? WEIGHTS[d] : 0;
        total += (uint32_t)weights[c];
    }
    while (mask < total - 1)
        mask = mask << 1 | 1;
    do
        r = draw(generator) & mask;
    while (r >= total);
    for (c = 0; r >= (uint32_t)weights[c]; c++)
        r -= (uint32_t)weights[c];
    return c;
}

/* ---- the program ----------------------------------------------------------------------------------------------------- */

#ifndef LUTETIA_NO_MAIN

/* A whole number of at most 4294967295, or -1. */
static int64_t whole(const char *text)
{
    int64_t value = 0;
    if (!*text)
        return -1;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return -1;
        value = (value << 3) + (value << 1) + (*text - '0');
        if (value > 4294967295)
            return -1;
    }
    return value;
}

int main(int argc, char **argv)
{
    static lutetia_state state;
    static uint8_t window[CONTEXT];
    int64_t n = argc > 1 ? whole(argv[1]) : -1, seed = argc > 2 ? whole(argv[2]) : 0;
    uint32_t generator = (uint32_t)seed;
    long length = 0;
    int byte, i, used, next = 0;
    if (argc < 2 || argc > 3 || n < 0 || seed < 0) {
        fprintf(stderr, "usage: %s N [SEED] < PROMPT\nwrites the N bytes that follow the prompt: the best, or with a SEED drawn\n",
                argc ? argv[0] : "run");
        return 2;
    }
    while ((byte = getchar()) != EOF) {
        if (byte >= VOCAB) {
            fprintf(stderr, "byte %ld of the prompt is %d, expected 0 to %d, the vocabulary of the model\n", length, byte, VOCAB - 1);
            return 2;
        }
        window[next] = (uint8_t)byte;
        next = next + 1 < CONTEXT ? next + 1 : 0;
        length++;
    }
    if (!length) {
        fprintf(stderr, "the prompt is empty, expected at least one byte to continue from\n");
        return 2;
    }
    used = length < CONTEXT ? (int)length : CONTEXT;
    lutetia_reset(&state);
    for (i = 0; i < used; i++) {
        int place = next - used + i;
        lutetia_put(&state, window[place < 0 ? place + CONTEXT : place]);
    }
    for (; n > 0; n--) {
        byte = argc > 2 ? lutetia_draw(&state, &generator) : lutetia_best(&state);
        putchar(byte);
        if (n > 1)
            lutetia_put(&state, byte);
    }
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "the text cannot be written\n");
        return 1;
    }
    return 0;
}

#endif
