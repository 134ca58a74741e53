/* Reads a CSV file with the names of its columns in the first line, and writes an answer for each row. */
#include "columns.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST 1000000L /* bytes of a row */
#define MOST_CELLS 20000
#define SHOWN 40 /* bytes of a cell in a message */

static const char MARKS[] = {',', ';', '\t', '|'}; /* that may stand between cells */
static char first[LONGEST]; /* the file up to the first row that holds anything, which says which of them does */
static long first_line = 0, first_length = 0, first_at = 0;
static char text[LONGEST]; /* the cells of a row, each ended by 0 */
static char *cells[MOST_CELLS];
static long line = 1, line_ends = 0;
static char delimiter = ',';
static int has_decimal_commas = 0;

/* Writes the beginning of a text, with question marks for control characters. */
static void show(const char *which)
{
    int i;
    for (i = 0; which[i] && (i < SHOWN || (which[i] & 0xc0) == 0x80); i++)
        fputc((which[i] >= 0 && which[i] < 32) || which[i] == 127 ? '?' : which[i], stderr);
    if (which[i])
        fputs("...", stderr);
}

static void stop(const char *what, const char *which)
{
    fflush(stdout);
    fprintf(stderr, "line %ld: %s", line, what);
    show(which);
    fputc('\n', stderr);
    exit(1);
}

static int is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* Spaces besides those of is_space, in UTF-8: a no-break space may stand around a cell, or before a unit. */
static const char *const SPACES[] = {
    "\034", "\035", "\036", "\037", "\302\205", "\302\240", "\341\232\200", "\342\200\200", "\342\200\201",
    "\342\200\202", "\342\200\203", "\342\200\204", "\342\200\205", "\342\200\206", "\342\200\207", "\342\200\210",
    "\342\200\211", "\342\200\212", "\342\200\250", "\342\200\251", "\342\200\257", "\342\201\237", "\343\200\200"};

/* The bytes of the space that a text begins with, of so many bytes; 0 where it begins with none. */
static long space_at(const char *at, long length)
{
    size_t i;
    if (length > 0 && is_space(*at))
        return 1;
    for (i = 0; i < sizeof SPACES / sizeof *SPACES && length > 0 && (*at & 0x80 || *at < ' '); i++) {
        long n = (long)strlen(SPACES[i]);
        if (n <= length && !memcmp(at, SPACES[i], (size_t)n))
            return n;
    }
    return 0;
}

/* The bytes of the space that a text of so many bytes ends with; 0 where it ends with none. */
static long space_before(const char *end, long length)
{
    long n;
    for (n = 1; n <= 3 && n <= length; n++)
        if (space_at(end - n, n) == n)
            return n;
    return 0;
}

static int next_byte(void)
{
    return first_at < first_length ? (unsigned char)first[first_at++] : getchar();
}

/* The next character; all ends of lines are \n. */
static int next_character(void)
{
    static int ahead = EOF, has_ahead = 0;
    int c = has_ahead ? ahead : next_byte();
    has_ahead = 0;
    if (c == '\r') {
        ahead = next_byte();
        has_ahead = ahead != '\n';
        c = '\n';
    }
    line_ends += c == '\n';
    if (c == 0) {
        line = line_ends + 1;
        stop("a byte 0, expected text in UTF-8", "");
    }
    return c;
}

/* Ends a cell that begins and ends at these places of the text, without the spaces around it: where the next one begins. */
static long end_cell(int number, long begin, long end)
{
    long n;
    while ((n = space_before(text + end, end - begin)) > 0)
        end -= n;
    while ((n = space_at(text + begin, end - begin)) > 0)
        begin += n;
    text[end] = 0;
    cells[number] = text + begin;
    return end + 1;
}

/* Reads a row, which may be empty, and returns the number of its cells; 0 at the end of the file. */
static int read_line(void)
{
    long n = 0, begin = 0;
    int count = 0, quoted = 0, was_quoted = 0, c = next_character();
    line = line_ends + 1;
    if (c == EOF)
        return 0;
    for (;; c = next_character()) {
        if (n + 2 >= LONGEST || count + 1 >= MOST_CELLS)
            stop("the row is too long", "");
        if (quoted && c != EOF) {
            if (c != '"') {
                text[n++] = (char)c;
                continue;
            }
            c = next_character();
            if (c == '"') {
                text[n++] = '"';
                continue;
            }
            quoted = 0;
        } else if (c == '"' && n == begin && !was_quoted) {
            quoted = was_quoted = 1;
            continue;
        }
        if (c == delimiter || c == '\n' || c == EOF) {
            begin = n = end_cell(count++, begin, n);
            was_quoted = 0;
            if (c != delimiter) {
                line = line_ends + (c == EOF);
                return count;
            }
        } else if (n > begin || c != ' ') {
            text[n++] = (char)c;
        }
    }
}

/* Reads the next row that holds anything, and returns the number of its cells; 0 at the end of the file. */
static int read_filled(void)
{
    int count, i;
    while ((count = read_line()) > 0)
        for (i = 0; i < count; i++)
            if (*cells[i])
                return count;
    return 0;
}

/* Reads the file up to the end of the first row that holds anything, without a byte order mark. */
static void read_first(void)
{
    int c, is_filled = 0, is_end = 0, is_begin = 1, quoted = 0, closed = 0;
    first_line = first_length = first_at = line_ends = 0;
    while (!is_end && first_length < LONGEST && (c = getchar()) != EOF) {
        first[first_length++] = (char)c;
        if (first_length == 3 && !memcmp(first, "\357\273\277", 3)) {
            first_length = is_filled = 0;
            is_begin = 1;
        } else if (c == '"' && (quoted || is_begin || closed)) { /* one after another one stands for itself */
            closed = quoted;
            quoted = !quoted;
            is_begin = 0;
            is_filled = 1;
        } else if (quoted || (c != '\n' && c != '\r')) {
            is_filled |= !is_space((char)c);
            is_begin = memchr(MARKS, c, sizeof MARKS) || (is_begin && c == ' ');
            closed = 0;
        } else if (is_filled) {
            is_end = 1;
        } else {
            first_line = first_length;
            is_begin = 1;
        }
    }
}

/* How many cells a mark makes of the first row. */
static int count_cells(char mark)
{
    int count = 1, quoted = 0, is_begin = 1;
    long i;
    for (i = first_line; i < first_length; i++) {
        char c = first[i];
        if (quoted) {
            quoted = c != '"' || (i + 1 < first_length && first[i + 1] == '"');
            i += c == '"' && quoted;
        } else if (c == '\n' || c == '\r') {
            return count;
        } else if (c == '"' && is_begin) {
            quoted = 1;
            is_begin = 0;
        } else if (c == mark) {
            count++;
            is_begin = 1;
        } else {
            is_begin = is_begin && c == ' ';
        }
    }
    return count;
}
