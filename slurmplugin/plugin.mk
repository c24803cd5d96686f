# SPDX-License-Identifier: GPL-2.0-or-later
# Builds OUT/PLUGIN_NAME.so, a plugin that finds the priority plugin beside it:
# from the folder it is included by, and from what EXTRA names of ../peer and
# ../shim. SAN=1 adds the address and undefined behaviour sanitizers.
ifeq ($(and $(SLURM_SRC),$(SLURM_BUILD),$(OUT)),)
$(error say SLURM_SRC=, the unpacked source of Slurm, SLURM_BUILD=, where it was configured, and OUT=, where the plugin goes)
endif

OBJECT_DIR := $(OUT)/$(notdir $(HERE:%/=%))
OBJECTS := $(patsubst %.c,$(OBJECT_DIR)/%.o,$(notdir $(wildcard $(HERE)*.c)) $(EXTRA))
PLUGIN := $(OUT)/$(PLUGIN_NAME).so
MAP := $(HERE)$(PLUGIN_NAME).map

CC ?= gcc
# Slurm's headers are not ours to warn about; the shim's are.
INCLUDES := -I$(HERE)../shim -I$(HERE)../peer -isystem $(SLURM_BUILD) -isystem $(SLURM_BUILD)/slurm -isystem $(SLURM_SRC)
WARNINGS := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wvla
HARDENING := -fstack-protector-strong -fstack-clash-protection -D_FORTIFY_SOURCE=2 -Wformat -Wformat-security
CFLAGS ?= -O2 -g
ALL_CFLAGS := $(CFLAGS) -std=gnu11 -fPIC -fvisibility=hidden -pthread $(WARNINGS) $(HARDENING) $(INCLUDES)
# As for the priority plugin.
ALL_LDFLAGS := $(LDFLAGS) -shared -pthread -Wl,--version-script=$(MAP) -Wl,-z,relro,-z,now,-z,noexecstack,-z,nodelete
LIBS := -ldl

ifeq ($(SAN),1)
ALL_CFLAGS += -fsanitize=address,undefined -fno-omit-frame-pointer -U_FORTIFY_SOURCE
ALL_LDFLAGS += -fsanitize=address,undefined
endif

.PHONY: all clean
all: $(PLUGIN)

$(PLUGIN): $(OBJECTS) $(MAP)
	$(CC) $(ALL_LDFLAGS) -o $@ $(OBJECTS) $(LIBS)

vpath %.c $(HERE) $(HERE)../peer $(HERE)../shim
$(OBJECT_DIR)/%.o: %.c $(HERE)Makefile $(HERE)../plugin.mk | $(OBJECT_DIR)
	$(CC) $(ALL_CFLAGS) -MMD -MP -c -o $@ $<

$(OBJECT_DIR):
	mkdir -p $@

clean:
	rm -rf $(OBJECT_DIR) $(PLUGIN)

-include $(OBJECTS:.o=.d)
