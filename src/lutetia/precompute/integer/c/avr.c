/* Runs a model on an AVR in simavr: answers samples of flash, and writes each answer, the half width of its interval where it has
 * one, and the cycles it took, as a line of text. Of windows of signals, it pushes samples, and answers when a window is full. A
 * language model reads its prompt from flash, and writes COUNT bytes.
 */
#include "model.h"

#include <avr/interrupt.h>
#include <avr/io.h>
#include <avr/pgmspace.h>
#include <avr/sleep.h>

#include "samples.h"

static volatile uint16_t wraps; /* of the counter of cycles */

ISR(TIMER1_OVF_vect)
{
    wraps++;
}

static uint32_t cycles(void)
{
    uint16_t low, high;
    cli();
    low = TCNT1;
    high = wraps;
    if (TIFR1 & 1 << TOV1) {
        low = TCNT1;
        high++;
    }
    sei();
    return (uint32_t)high << 16 | low;
}

static void put(char c)
{
    while (!(UCSR0A & 1 << UDRE0))
        ;
    UDR0 = (uint8_t)c;
}

static void put_number(int32_t value)
{
    char digits[10];
    uint8_t n = 0;
    uint32_t left = value < 0 ? 0u - (uint32_t)value : (uint32_t)value;
    if (value < 0)
        put('-');
    do {
        digits[n++] = (char)('0' + left % 10);
        left /= 10;
    } while (left);
    while (n)
        put(digits[--n]);
    put(' ');
}

int main(void)
{
    uint32_t begin;
    uint16_t n;
    UCSR0B = 1 << TXEN0;
    TCCR1B = 1;
    TIMSK1 = 1 << TOIE1;
    sei();
#ifdef LUTETIA_INPUTS
    begin = cycles();
    for (n = 0; n < N_SAMPLES; n++) {
        int32_t answer;
#if defined LUTETIA_SIGNALS
        static int32_t sample[LUTETIA_SIGNALS];
        const input_t *x = lutetia_window;
        memcpy_P(sample, SAMPLES[n], sizeof sample);
        if (!lutetia_push(sample))
            continue;
#elif defined LUTETIA_ENCODES
        static sample_t sample[LUTETIA_SAMPLE];
        static input_t x[LUTETIA_INPUTS];
        memcpy_P(sample, SAMPLES[n], sizeof sample);
        begin = cycles();
        lutetia_encode(sample, x);
#else
        static input_t x[LUTETIA_INPUTS];
        memcpy_P(x, SAMPLES[n], sizeof x);
        begin = cycles();
#endif
        answer = lutetia_answer(x);
        begin = cycles() - begin;
        put_number(answer);
#ifdef LUTETIA_INTERVALS
        put_number(lutetia_half_width(x));
#endif
        put_number((int32_t)begin);
        put('\n');
        begin = cycles();
    }
#else
    {
        static lutetia_state state;
        lutetia_reset(&state);
        for (n = 0; n < sizeof PROMPT; n++)
            lutetia_put(&state, pgm_read_byte(PROMPT + n));
        for (n = 0; n < COUNT; n++) {
            int byte;
            begin = cycles();
            byte = lutetia_best(&state);
            lutetia_put(&state, byte);
            begin = cycles() - begin;
            put_number(byte);
            put_number((int32_t)begin);
            put('\n');
        }
    }
#endif
    while (!(UCSR0A & 1 << UDRE0))
        ;
    cli();
    sleep_mode();
    return 0;
}
