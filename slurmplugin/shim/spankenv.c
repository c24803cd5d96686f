/* SPDX-License-Identifier: GPL-2.0-or-later */
/* spankenv.c: the minimum runtime in a job's SPANK environment. */
#include <ctype.h>
#include <stddef.h>
#include <string.h>

#include "spankenv.h"

#define PREFIX "SPANK_"
#define LONGEST_S INT64_C(3155760000) /* a hundred years */

/* slurmctld keeps what the client sent; a release may put the prefix before it
 * that prologs see. */
static const char *value_of(const char *variable)
{
	const size_t name = strlen(SPANKENV_VARIABLE);

	if (!variable)
		return NULL;
	if (!strncmp(variable, PREFIX, strlen(PREFIX)))
		variable += strlen(PREFIX);
	return strncmp(variable, SPANKENV_VARIABLE "=", name + 1) ? NULL : variable + name + 1;
}

const char *spankenv_find(char *const *env, uint32_t count, uint32_t *at)
{
	for (uint32_t i = 0; env && i < count; i++) {
		const char *value = value_of(env[i]);

		if (!value)
			continue;
		*at = i;
		return value;
	}
	return NULL;
}

/* The option has made seconds of what was typed. */
bool spankenv_seconds(const char *text, int64_t *seconds)
{
	if (!isdigit((unsigned char)*text))
		return false;
	for (*seconds = 0; isdigit((unsigned char)*text); text++)
		if (*seconds < LONGEST_S)
			*seconds = *seconds * 10 + (*text - '0');
	if (*seconds > LONGEST_S)
		*seconds = LONGEST_S;
	return !*text;
}
