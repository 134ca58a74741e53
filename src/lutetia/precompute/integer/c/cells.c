
/* ---- cells ----------------------------------------------------------------------------------------------------------- */

#define EURO "\342\202\254"
#define POUND "\302\243"

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* Whether two texts are the same but for capital letters from A to Z. */
static int same(const char *a, const char *b)
{
    while (*a && lower(*a) == lower(*b))
        a++, b++;
    return lower(*a) == lower(*b);
}

/* Moves behind a word that a text begins with, in small letters; 0 where it does not. */
static int skip(const char **at, const char *word)
{
    size_t i;
    for (i = 0; word[i]; i++)
        if (lower((*at)[i]) != word[i])
            return 0;
    *at += i;
    return 1;
}

static void skip_digits(const char **at)
{
    while (is_digit(**at))
        ++*at;
}

/* Whether a text is a plain number: 12, -1.5, .5, 1e-3. */
static int is_plain(const char *at)
{
    const char *begin;
    int digits;
    if (*at == '-' || *at == '+')
        at++;
    begin = at;
    skip_digits(&at);
    digits = at > begin;
    if (*at == '.') {
        begin = ++at;
        skip_digits(&at);
        digits |= at > begin;
    }
    if (digits && skip(&at, "e")) {
        if (*at == '-' || *at == '+')
            at++;
        begin = at;
        skip_digits(&at);
        digits = at > begin;
    }
    return digits && !*at;
}

/* Copies digits in groups of three, with a mark between them, and those behind the point: 1 where the text holds nothing else. */
static int without_groups(const char *at, char mark, char point, char *to)
{
    int digits = 0, groups = 0, decimals = 0;
    for (; is_digit(*at) || (*at == mark && digits > 0 && digits < 4); at++) {
        if (*at == mark) {
            if (groups && digits != 3)
                return 0;
            groups++, digits = 0;
        } else {
            *to++ = *at;
            digits++;
        }
    }
    if (!digits || (groups && digits != 3))
        return 0;
    if (*at == point) {
        *to++ = '.';
        for (at++; is_digit(*at); at++, decimals++)
            *to++ = *at;
        if (!decimals)
            return 0;
    }
    *to = 0;
    return !*at && (point == '.' || (groups && decimals)); /* 1,5 may be two numbers */
}

/* A number, also 1,234.5 and 1.234,5, $5 and 5%, which is 5; NAN for another text. */
static double number_of(const char *cell)
{
    char digits[300], plain[300];
    size_t n;
    int negative = *cell == '-', euro;
    double value;
    if (is_plain(cell)) {
        value = strtod(cell, 0);
        return isfinite(value) ? value : (double)NAN;
    }
    if (*cell == '-' || *cell == '+')
        cell++;
    euro = skip(&cell, EURO) || !(skip(&cell, "$") || skip(&cell, POUND));
    cell += space_at(cell, (long)strlen(cell));
    n = strspn(cell, "0123456789.,");
    if (n >= sizeof digits)
        return NAN;
    memcpy(digits, cell, n);
    digits[n] = 0;
    cell += n;
    cell += space_at(cell, (long)strlen(cell));
    if (*cell && !skip(&cell, "%"))
        skip(&cell, EURO);
    if (*cell || !(without_groups(digits, ',', '.', plain) || (euro && without_groups(digits, '.', ',', plain))))
        return NAN;
    return negative ? -strtod(plain, 0) : strtod(plain, 0);
}

/* A number that the unit of its column may follow; NAN for another text. */
static double measured_of(const char *cell, const char *unit)
{
    char number[300];
    size_t n = strlen(cell), m = strlen(unit);
    if (m && n > m && !strcmp(cell + n - m, unit)) {
        n -= m;
        n -= (size_t)space_before(cell + n, (long)n);
        if (n > 0 && n < sizeof number && strspn(cell, "0123456789.,+-eE") >= n && is_digit(cell[n - 1])) {
            memcpy(number, cell, n);
            number[n] = 0;
            return number_of(number);
        }
    }
    return number_of(cell);
}

/* The number of a category by its name, in any case where only one has these letters; -1 for another text. */
static int category_of(const char *cell, const char *const *names)
{
    int i, found = -1, count = 0;
    for (i = 0; names[i]; i++) {
        if (!strcmp(cell, names[i]))
            return i;
        if (same(cell, names[i])) {
            found = i;
            count++;
        }
    }
    return count == 1 ? found : -1;
}

static int is_missing(const char *cell, int is_date)
{
    int i;
    for (i = 0; lutetia_missing[i]; i++)
        if (same(cell, lutetia_missing[i]))
            return 1;
    return is_date && same(cell, "nat");
}
