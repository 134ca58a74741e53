
/* ---- dates ----------------------------------------------------------------------------------------------------------- */

/* The parts of a date as it is written. */
typedef struct {
    int year, month, day, hour, minute, second, microseconds;
    long ahead; /* seconds of its zone */
} date_t;

static int skip_spaces(const char **at)
{
    const char *begin = *at;
    while (is_space(**at))
        ++*at;
    return *at > begin;
}

/* Reads a number of `least` to `most` digits, with no other digit behind it; 0 where there is none. */
static int read_digits(const char **at, int least, int most, int *value)
{
    int n = 0;
    *value = 0;
    for (; n < most && is_digit(**at); n++, ++*at)
        *value = 10 * *value + (**at - '0');
    return n >= least && !is_digit(**at);
}

/* Reads as many digits, whatever follows. */
static int read_packed(const char **at, int count, int *value)
{
    *value = 0;
    for (; count > 0; count--, ++*at) {
        if (!is_digit(**at))
            return 0;
        *value = 10 * *value + (**at - '0');
    }
    return 1;
}

/* Reads the name of a month, short or long. */
static int read_month(const char **at, int *month)
{
    static const char *const names[] = {"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"};
    static const char *const ends[] = {"uary", "ruary", "ch", "il", "ember", "e", "y", "ust", "tember", "t", "ober", 0};
    int i;
    for (*month = 0; *month < 12 && !skip(at, names[*month]); ++*month)
        ;
    if (++*month > 12)
        return 0;
    for (i = 0; ends[i] && !skip(at, ends[i]); i++)
        ;
    skip(at, ".");
    return 1;
}

/* Moves behind a day of the week and the spaces that follow it. */
static int skip_weekday(const char **at)
{
    static const char *const names[] = {"mon", "tue", "wed", "thu", "fri", "sat", "sun", 0};
    int i;
    for (i = 0; names[i] && !skip(at, names[i]); i++)
        ;
    if (!names[i])
        return 1;
    while (lower(**at) >= 'a' && lower(**at) <= 'z')
        ++*at;
    skip(at, ",");
    return skip_spaces(at);
}

/* Reads a zone, up to the end of the text: Z, UTC, +01, -0530, +05:30. */
static int read_zone(const char *at, date_t *date)
{
    int hours, minutes = 0, sign = *at == '-' ? -1 : 1;
    if (!*at || same(at, "z") || same(at, "utc") || same(at, "gmt"))
        return 1;
    if ((*at != '+' && *at != '-') || (at++, !read_packed(&at, 2, &hours)))
        return 0;
    if (*at && (skip(&at, ":"), !read_packed(&at, 2, &minutes)))
        return 0;
    date->ahead = sign * (hours * 3600L + minutes * 60L);
    return !*at && hours < 24 && minutes < 60;
}

/* Reads a time of day, which may be left out, up to the end of the text: T16:30, 4:30 pm, 16:30:05.25+01:00. */
static int read_time(const char *at, date_t *date)
{
    int n, digit, half = 0;
    if (!*at)
        return 1;
    if (!skip(&at, "t") && (skip(&at, ","), !skip_spaces(&at)))
        return 0;
    if (!read_digits(&at, 1, 2, &date->hour) || !skip(&at, ":") || !read_digits(&at, 2, 2, &date->minute))
        return 0;
    if (skip(&at, ":")) {
        if (!read_digits(&at, 2, 2, &date->second))
            return 0;
        if (skip(&at, ".") || skip(&at, ",")) {
            for (n = 0; is_digit(*at); at++, n++) {
                digit = *at - '0';
                date->microseconds = n < 6 ? 10 * date->microseconds + digit : date->microseconds;
            }
            if (n < 1 || n > 9)
                return 0;
            for (; n < 6; n++)
                date->microseconds *= 10;
        }
    }
    skip_spaces(&at);
    if (skip(&at, "am") || skip(&at, "a.m."))
        half = 1;
    else if (skip(&at, "pm") || skip(&at, "p.m."))
        half = 2;
    if (half) {
        if (date->hour < 1 || date->hour > 12)
            return 0;
        date->hour = date->hour % 12 + (half == 2 ? 12 : 0);
        skip_spaces(&at);
    }
    return read_zone(at, date);
}

/* Reads a date whose month is a word: 29 Feb 2024, Thu 29-feb-2024, February 29, 2024. */
static int read_named(const char *at, date_t *date)
{
    const char *begin;
    if (!skip_weekday(&at))
        return 0;
    if (is_digit(*at)) {
        if (!read_digits(&at, 1, 2, &date->day))
            return 0;
        for (begin = at; *at == '-' || is_space(*at); at++)
            ;
        if (at == begin || !read_month(&at, &date->month))
            return 0;
        for (begin = at; *at == '-' || *at == ',' || is_space(*at); at++)
            ;
        if (at == begin)
            return 0;
    } else {
        if (!read_month(&at, &date->month) || !skip_spaces(&at) || !read_digits(&at, 1, 2, &date->day))
            return 0;
        skip(&at, ",");
        if (!skip_spaces(&at))
            return 0;
    }
    return read_digits(&at, 4, 4, &date->year) && read_time(at, date);
}

/* Reads a date of digits with marks between them: 2024-02-29, 2024-02, or 29/02/2024 in the order of the column. */
static int read_marked(const char *at, int order, date_t *date)
{
    int leading, second, digits = (int)strspn(at, "0123456789"), years;
    char mark = at[digits];
    if (!mark || !strchr("-/.", mark) || !read_digits(&at, 1, 4, &leading) || (at++, !read_digits(&at, 1, 2, &second)))
        return 0;
    if (digits == 4) {
        date->year = leading, date->month = second, date->day = 1;
        if (!*at)
            return mark != '.';
        return *at++ == mark && read_digits(&at, 1, 2, &date->day) && read_time(at, date);
    }
    if (order == 1 || digits > 2 || *at++ != mark)
        return 0;
    years = (int)strspn(at, "0123456789");
    if (!read_digits(&at, 2, 4, &date->year) || !(years == 4 || (years == 2 && mark == '/')))
        return 0;
    if (years == 2)
        date->year += date->year >= 50 ? 1900 : 2000;
    date->month = order == 2 ? second : leading, date->day = order == 2 ? leading : second;
    return read_time(at, date);
}

/* Reads digits alone: 20240229, 20240229T163000Z. */
static int read_run(const char *at, date_t *date)
{
    if (!read_packed(&at, 4, &date->year) || !read_packed(&at, 2, &date->month) || !read_packed(&at, 2, &date->day))
        return 0;
    if (!*at)
        return 1;
    if (!skip(&at, "t") || !read_packed(&at, 2, &date->hour) || !read_packed(&at, 2, &date->minute))
        return 0;
    if (is_digit(*at) && !read_packed(&at, 2, &date->second))
        return 0;
    skip(&at, "z");
    return !*at;
}

/* A date in seconds, as lutetia_date gives it; NAN for another text, and for a day that does not exist. */
static double date_of(const char *cell, int order)
{
    static const date_t nothing;
    date_t date = nothing;
    size_t digits = strspn(cell, "0123456789");
    int is_read = digits > 4 ? read_run(cell, &date) : digits > 0 && read_marked(cell, order, &date);
    double seconds;
    if (!is_read) {
        date = nothing;
        if (digits > 2 || !read_named(cell, &date))
            return NAN;
    }
    seconds = lutetia_date(date.year, date.month, date.day, date.hour, date.minute, date.second) - (double)date.ahead;
    if (!(seconds >= LUTETIA_FIRST_SECOND && seconds <= LUTETIA_LAST_SECOND))
        return NAN; /* a zone may lead out of the calendar */
    return seconds + date.microseconds / 1000000.0;
}
