
/* ---- texts ----------------------------------------------------------------------------------------------------------- */

#include <stdlib.h>
#include <string.h>

enum { BETWEEN, OF_WORD, ALONE, SKIPPED, APOSTROPHE };
#define LONGEST_WORD 1000 /* bytes: longer words are not known */
#define LONG_NUMBER 5     /* digits from which all numbers of a length are one word */

static char word[LONGEST_WORD + 8], last[LONGEST_WORD + 8], pair[2 * LONGEST_WORD + 16];
static unsigned char seen[MOST_GRAMS];

/* The character at a place, which is moved behind it; what is no UTF-8 is one character of one byte. */
static long next_code(const char **at)
{
    const unsigned char *c = (const unsigned char *)*at;
    int more = *c < 0x80 ? 0 : *c >= 0xf0 && *c < 0xf8 ? 3 : *c >= 0xe0 && *c < 0xf0 ? 2 : *c >= 0xc2 && *c < 0xe0 ? 1 : -1, i;
    long code = more == 3 ? *c & 7 : more == 2 ? *c & 15 : more == 1 ? *c & 31 : *c;
    for (i = 1; i <= more; i++) {
        if ((c[i] & 0xc0) != 0x80)
            break;
        code = code << 6 | (c[i] & 63);
    }
    *at += i;
    return more < 0 || i <= more ? 0xfffd : code;
}

static int kind_of(long code)
{
    int low = 0, high = N_RANGES;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (BEGIN[middle] <= code)
            low = middle;
        else
            high = middle;
    }
    return KIND[low];
}

/* The small letter of a character, of those that stand in known words; the plain apostrophe for a curly one. */
static long folded(long code)
{
    int low = 0, high = N_FOLDS;
    while (low < high) {
        int middle = (low + high) / 2;
        if (FOLD_FROM[middle] == code)
            return FOLD_TO[middle];
        if (FOLD_FROM[middle] < code)
            low = middle + 1;
        else
            high = middle;
    }
    return code;
}

/* Adds a character to the word, in UTF-8. */
static void add(size_t *n, long code)
{
    if (*n > LONGEST_WORD)
        return;
    if (code < 0x80) {
        word[(*n)++] = (char)code;
    } else if (code < 0x800) {
        word[(*n)++] = (char)(0xc0 | code >> 6);
        word[(*n)++] = (char)(0x80 | (code & 63));
    } else if (code < 0x10000) {
        word[(*n)++] = (char)(0xe0 | code >> 12);
        word[(*n)++] = (char)(0x80 | (code >> 6 & 63));
        word[(*n)++] = (char)(0x80 | (code & 63));
    } else {
        word[(*n)++] = (char)(0xf0 | code >> 18);
        word[(*n)++] = (char)(0x80 | (code >> 12 & 63));
        word[(*n)++] = (char)(0x80 | (code >> 6 & 63));
        word[(*n)++] = (char)(0x80 | (code & 63));
    }
}

/* Reads the next word of a text, which is moved behind it; 0 at the end. */
static int next_word(const char **at)
{
    size_t n = 0;
    int kind = BETWEEN;
    while (**at && kind != OF_WORD && kind != ALONE) {
        long code = next_code(at);
        kind = kind_of(code);
        if (kind == OF_WORD || kind == ALONE)
            add(&n, folded(code));
    }
    while (kind == OF_WORD && **at) {
        const char *ahead = *at, *behind;
        long code = next_code(&ahead);
        int next = kind_of(code);
        behind = ahead;
        if (next == APOSTROPHE && !(*ahead && kind_of(next_code(&behind)) == OF_WORD))
            break;
        if (next != OF_WORD && next != SKIPPED && next != APOSTROPHE)
            break;
        if (next != SKIPPED)
            add(&n, next == APOSTROPHE ? '\'' : folded(code));
        *at = ahead;
    }
    word[n] = 0;
    if (n >= LONG_NUMBER && strspn(word, "0123456789") == n)
        memset(word, '0', n);
    return n > 0;
}

static int compare(const void *a, const void *b)
{
    return strcmp((const char *)a, *(const char *const *)b);
}

/* Counts a word or a pair, the first time that it occurs. */
static void count(const text_t *text, const char *gram, double *values)
{
    const char *const *found = bsearch(gram, text->grams, text->n_grams, sizeof *text->grams, compare);
    size_t number = found ? (size_t)(found - text->grams) : 0;
    int i;
    if (!found || seen[number])
        return;
    seen[number] = 1;
    for (i = 0; i < text->n_tallies; i++)
        values[text->first + i] += text->weights[number * (size_t)text->n_tallies + (size_t)i];
    if (text->asked[number] >= 0)
        values[text->asked[number]] = 1;
}

void lutetia_text(int number, const char *cell, double values[LUTETIA_VALUES])
{
    const text_t *text = TEXTS + number;
    int i, n = 0;
    for (i = 0; i <= text->n_tallies; i++)
        values[text->first + i] = cell ? 0 : NAN;
    for (i = 0; i < text->n_words; i++)
        values[text->first_word + i] = cell ? 0 : NAN;
    if (!cell)
        return;
    memset(seen, 0, sizeof seen);
    for (; next_word(&cell); n++) {
        count(text, word, values);
        if (n) {
            size_t length = strlen(last);
            memcpy(pair, last, length);
            pair[length] = ' ';
            strcpy(pair + length + 1, word);
            count(text, pair, values);
        }
        strcpy(last, word);
    }
    values[text->first + text->n_tallies] = n;
}
