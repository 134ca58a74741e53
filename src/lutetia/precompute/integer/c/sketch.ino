static values_t row[VALUES];

/* What is made of a row, and of each answer: put your own code here. */
static void onRow(const values_t values[VALUES])
{
ANSWER}

/* Reads a line of whole numbers with spaces, commas or tabs between them. True once a line is whole; a line that is not is told of. */
static bool readRow()
{
    static number_t value = 0;
    static int count = 0;
    static bool isNegative = false, isNumber = false, isWrong = false;
    while (Serial.available() > 0) {
        const char c = (char)Serial.read();
        if (c >= '0' && c <= '9') {
            isNumber = true;
            isWrong |= value > LARGEST;
            if (!isWrong)
                value = value * 10 + (c - '0');
            continue;
        }
        if (c == '-' && !isNumber && !isNegative) {
            isNegative = true;
            continue;
        }
MISSING        if (c != ' ' && c != ',' && c != '\t' && c != '\r' && c != '\n')
            isWrong = true;
        if (isNumber) {
            value = isNegative ? -value : value;
            isWrong |= value < SMALLEST || value > LARGEST || count >= VALUES;
            if (!isWrong)
                row[count] = (values_t)value;
            count++;
        }
        isWrong |= isNegative && !isNumber;
        value = 0;
        isNegative = isNumber = false;
        if (c == '\n') {
            const bool isWhole = !isWrong && count == VALUES;
            if (!isWhole && (isWrong || count > 0))
                Serial.println(F("expected " EXPECTED));
            count = 0;
            isWrong = false;
            if (isWhole)
                return true;
        }
    }
    return false;
}

void setup()
{
    Serial.begin(115200);
    while (!Serial)
        ; /* boards with a USB port of their own */
    Serial.println(F("send " EXPECTED));
}

void loop()
{
    if (readRow())
        onRow(row);
}
