/* SPDX-License-Identifier: GPL-2.0-or-later */
/* minruntime.c: minimum runtimes as text. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "minruntime.h"

#define MINUTE UINT64_C(60)
#define HOUR (60 * MINUTE)
#define DAY (24 * HOUR)
#define LONGEST (36525 * DAY)

/* Reads digits, at least one. What is beyond any use stops at LONGEST + 1. */
static bool number(const char **text, uint64_t *value)
{
	if (!isdigit((unsigned char)**text))
		return false;
	for (*value = 0; isdigit((unsigned char)**text); (*text)++)
		if (*value <= LONGEST)
			*value = *value * 10 + (uint64_t)(**text - '0');
	if (*value > LONGEST)
		*value = LONGEST + 1;
	return true;
}

static uint64_t unit(char c)
{
	switch (tolower((unsigned char)c)) {
	case 's':
		return 1;
	case 'm':
		return MINUTE;
	case 'h':
		return HOUR;
	case 'd':
		return DAY;
	}
	return 0;
}

/* Numbers between colons, three at most. */
static int fields(const char **text, uint64_t values[3])
{
	int count = 0;

	do {
		if (count == 3 || !number(text, &values[count]))
			return 0;
		count++;
	} while (**text == ':' && (*text)++);
	return count;
}

bool minruntime_parse(const char *text, uint64_t *seconds)
{
	/* What the first of so many fields counts, without and with days before. */
	static const uint64_t plain[4] = { 0, MINUTE, MINUTE, HOUR };
	uint64_t days = 0, total, each, values[3];
	bool dated = false;
	int count;

	if (!text || !(count = fields(&text, values)))
		return false;
	if (count == 1 && *text == '-') {
		text++;
		days = values[0];
		dated = true;
		if (!(count = fields(&text, values)))
			return false;
	}
	if (count == 1 && !dated && (each = unit(*text)))
		text++;
	else
		each = dated ? HOUR : plain[count];
	if (*text)
		return false;
	total = days * DAY;
	for (int i = 0; i < count; i++, each /= 60)
		total += values[i] * each;
	if (total > LONGEST)
		return false;
	*seconds = total;
	return true;
}

const char *minruntime_text(uint64_t seconds, char out[MINRUNTIME_TEXT])
{
	int length = 0;

	if (seconds >= DAY)
		length = snprintf(out, MINRUNTIME_TEXT, "%" PRIu64 "-", seconds / DAY);
	snprintf(out + length, MINRUNTIME_TEXT - (size_t)length, "%02u:%02u:%02u", (unsigned)(seconds % DAY / HOUR),
		 (unsigned)(seconds % HOUR / MINUTE), (unsigned)(seconds % MINUTE));
	return out;
}
