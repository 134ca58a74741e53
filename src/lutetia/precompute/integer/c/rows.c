/* Reads a CSV file with the names of its columns in the first line, and writes an answer for each row. */
#include "columns.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LONGEST 1000000L
#define MOST_CELLS 20000

static char text[LONGEST];         /* the cells of a row, each ended by 0 */
static const char *cells[MOST_CELLS];
static long line = 1;

static int stop(const char *what, const char *which)
{
    fprintf(stderr, "line %ld: %s%s\n", line, what, which);
    exit(1);
}

/* Reads a row and returns the number of its cells; 0 at the end of the file. */
static int read_row(void)
{
    long n = 0, begin = 0;
    int count = 0, quoted = 0, was_quoted = 0, c = getchar();
    while (c == '\n' || c == '\r') {
        line += c == '\n';
        c = getchar();
    }
    if (c == EOF)
        return 0;
    for (;; c = getchar()) {
        if (n + 2 >= LONGEST || count + 1 >= MOST_CELLS)
            stop("the row is too long", "");
        if (quoted && c != EOF) {
            if (c != '"') {
                text[n++] = (char)c;
                continue;
            }
            c = getchar();
            if (c == '"') {
                text[n++] = '"';
                continue;
            }
            quoted = 0;
        } else if (c == '"' && n == begin && !was_quoted) {
            quoted = was_quoted = 1;
            continue;
        }
        if (c == ',' || c == '\n' || c == EOF) {
            while (n > begin && (text[n - 1] == ' ' || text[n - 1] == '\t' || text[n - 1] == '\r'))
                n--;
            text[n++] = 0;
            cells[count++] = text + begin;
            begin = n;
            was_quoted = 0;
            if (c != ',')
                return count;
        } else if (!(n == begin && (c == ' ' || c == '\t'))) {
            text[n++] = (char)c;
        }
    }
}

#ifdef LUTETIA_DATES
/* The number after the mark that a text begins with, of one or two digits, and the text behind it; -1 where there is none. */
static int number_after(const char **text, char mark)
{
    const char *at = *text + 1;
    int n = 0, value = 0;
    if (**text != mark)
        return -1;
    for (; n < 2 && at[n] >= '0' && at[n] <= '9'; n++)
        value = 10 * value + at[n] - '0';
    *text = at + n;
    return n ? value : -1;
}

/* Seconds by which a zone is ahead of UTC: "", Z, UTC, +01, -0530, +05:30; NAN for another text. */
static double zone_of(const char *text)
{
    char sign = *text;
    int hours, minutes = 0;
    if (!*text || !strcmp(text, "Z") || !strcmp(text, "UTC") || !strcmp(text, "GMT"))
        return 0;
    if (sign != '+' && sign != '-')
        return NAN;
    hours = number_after(&text, sign);
    if (*text == ':') {
        minutes = number_after(&text, ':');
    } else if (*text) {
        text--;
        minutes = number_after(&text, *text);
    }
    if (*text || hours < 0 || hours > 23 || minutes < 0 || minutes > 59)
        return NAN;
    return (sign == '+' ? 1 : -1) * (hours * 3600.0 + minutes * 60);
}

/* A date of numbers in seconds: 2024-02-29, 29/02/2024 16:30, 2024-02-29T16:30:00+01:00. */
static double date_of(const char *cell, int order)
{
    const char *at = cell + strspn(cell, "0123456789");
    int first = atoi(cell), digits = (int)(at - cell), second, third, year, month, day, hour = 0, minute = 0;
    char mark = *at, *end;
    double seconds = 0, zone;
    if (digits > 4 || !mark || !strchr("-/.", mark))
        return NAN;
    second = number_after(&at, mark);
    if (digits == 4) {
        third = number_after(&at, mark);
        year = first, month = second, day = third;
    } else {
        const char *begin = at + 1;
        if (order == 1 || *at != mark || digits > 2)
            return NAN;
        at = begin + strspn(begin, "0123456789");
        year = atoi(begin);
        if (at - begin == 2 && mark == '/')
            year += year >= 50 ? 1900 : 2000;
        else if (at - begin != 4)
            return NAN;
        month = order == 2 ? second : first, day = order == 2 ? first : second;
    }
    if (*at == 'T' || *at == ' ') {
        hour = number_after(&at, *at);
        minute = number_after(&at, ':');
        if (*at == ':') {
            if (at[1] < '0' || at[1] > '9')
                return NAN;
            seconds = strtod(at + 1, &end);
            at = end;
        }
        at += *at == ' ';
    }
    zone = zone_of(at);
    return lutetia_date(year, month, day, hour, minute, seconds) - zone;
}
#endif

/* The value of a cell: a number, with the unit of its column or without, or the number of a category. */
static double value_of(const char *cell, int column)
{
    static const char *const missing[] = {"", "NA", "N/A", "nan", "NaN", "null", "None", "?", "NaT", 0};
    const char *const *name = lutetia_categories[column];
    char *rest;
    double value;
    int i;
    for (i = 0; missing[i]; i++)
        if (!strcmp(cell, missing[i]))
            return NAN;
    if (name) {
        for (i = 0; name[i]; i++)
            if (!strcmp(cell, name[i]))
                return i;
        stop("the model has not seen ", cell);
    }
#ifdef LUTETIA_DATES
    if (lutetia_dates[column]) {
        value = date_of(cell, lutetia_dates[column]);
        if (value != value)
            stop("no date of numbers: ", cell);
        return value;
    }
#endif
    value = strtod(cell, &rest);
    if (rest == cell)
        stop("no number: ", cell);
    while (*rest == ' ')
        rest++;
    if (*rest && strcmp(rest, lutetia_units[column]))
        stop("no number: ", cell);
    return value;
}

int main(void)
{
    static int place[LUTETIA_COLUMNS];
    static double values[LUTETIA_COLUMNS];
    static input_t x[LUTETIA_INPUTS];
    int column, i, width = read_row();
    int bom = width && !strncmp(cells[0], "\357\273\277", 3) ? 3 : 0;
    for (column = 0; column < LUTETIA_COLUMNS; column++) {
        for (i = 0; i < width && strcmp(cells[i] + (i ? 0 : bom), lutetia_columns[column]); i++)
            ;
        if (i == width)
            stop("the first line, with commas between its cells, has no column ", lutetia_columns[column]);
        place[column] = i;
    }
    for (line++; (i = read_row()) > 0; line++) {
        if (i != width)
            stop("the row has another number of cells than the first line", "");
        for (column = 0; column < LUTETIA_COLUMNS; column++)
            values[column] = value_of(cells[place[column]], column);
        lutetia_encode(values, x);
#ifdef LUTETIA_UNIT
        printf("%.9g\n", lutetia_answer(x) * LUTETIA_UNIT);
#else
        printf("%s\n", lutetia_classes[lutetia_answer(x)]);
#endif
    }
    return 0;
}
