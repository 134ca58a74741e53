
/* Days from the beginning of 1970 to that of a year from 0 to 10000. */
static long first_day(long year)
{
    long before = year > 0 ? year - 1 : 0;
    return 365 * (year - 1970) + before / 4 - before / 100 + before / 400 - 477;
}

static int month_days(long year, int month)
{
    if (month == 2)
        return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) ? 29 : 28;
    return month == 4 || month == 6 || month == 9 || month == 11 ? 30 : 31;
}

double lutetia_date(int year, int month, int day, int hour, int minute, double second)
{
    long days;
    int m;
    if (year < 1 || year > 9999 || month < 1 || month > 12 || day < 1 || day > month_days(year, month) || hour < 0 || hour > 23 ||
        minute < 0 || minute > 59 || !(second >= 0 && second < 60))
        return NAN;
    days = first_day(year) + day - 1;
    for (m = 1; m < month; m++)
        days += month_days(year, m);
    return (double)days * 86400.0 + hour * 3600.0 + minute * 60.0 + second;
}

/* A part of a date: 1 the year, 2 the month, 3 the day, 4 the weekday, from 1 for Monday, 5 the hour. */
static double part_of(double seconds, int part)
{
    const double low = LUTETIA_FIRST_SECOND, high = LUTETIA_LAST_SECOND;
    long long whole = (long long)(seconds < low ? low : seconds > high ? high : seconds);
    long days, year;
    int month;
    if (whole > seconds)
        whole--;
    if (whole < (long long)low)
        whole = (long long)low;
    days = (long)((whole + 62135596800LL) / 86400 - 719162);
    if (part == 5)
        return (double)((whole + 62135596800LL) % 86400 / 3600);
    if (part == 4)
        return (double)((days + 719162) % 7 + 1); /* the first of January of the year 1 is a Monday */
    year = 1 + (days + 719162) / 366;
    while (first_day(year + 1) <= days)
        year++;
    if (part == 1)
        return (double)year;
    days -= first_day(year);
    for (month = 1; days >= month_days(year, month); month++)
        days -= month_days(year, month);
    return part == 2 ? month : (double)(days + 1);
}
