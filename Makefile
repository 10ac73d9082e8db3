# gpt2.c: `make` builds the CPU programs, `make help` lists the rest. GNU make 3.81 or later, gcc or clang.
#
#   make CC=clang          another compiler
#   make ARCH=             for any processor of this kind, not for this one only (ARCH=-march=haswell: for that one)
#   make OPENMP=0          one thread, no OpenMP
#   make CFLAGS="-O0 -g"   instead of -O3, e.g. for a debugger
#   make WERROR=1          warnings are errors (the tests build so)
#
# A header or a flag that changes rebuilds what depends on it.

PROGRAMS = train_gpt2 test_gpt2 tokenize
BIN      =#      where the programs go; empty: here
BUILD    = build# where tests, dependency files and the record of the flags go
PREFIX   = $(if $(BIN),$(BIN)/)

# --- the compiler: gcc, else clang, else whatever cc is --------------------------------------------------------------
ifeq ($(origin CC),default)
  CC := $(firstword $(foreach name,gcc clang cc,$(if $(shell command -v $(name) 2>/dev/null),$(name))) cc)
endif

# $(call accepts,FLAGS,SOURCE,LIBRARIES): "yes" if the compiler builds SOURCE (a printf format) with them. Linked for
# real, since a compiler can know a flag and lack its library.
accepts = $(shell mkdir -p $(BUILD) && probe=$(BUILD)/probe.$$$$ && printf '$(2)' | $(CC) $(1) -x c - -o $$probe $(3) \
            >/dev/null 2>&1 && echo yes; rm -f $$probe)
EMPTY_PROGRAM  = int main(void) { return 0; }
OPENMP_PROGRAM = \043include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }

# --- the flags -------------------------------------------------------------------------------------------------------
# Floating point: contraction into FMA and "math functions do not set errno" are the only liberties. -ffast-math would
# drop the NaN checks and reorder sums, so it is refused even when asked for.
STRICT_FLAGS = -std=gnu11 -Wall -Wextra -ffp-contract=fast -fno-math-errno
ifneq ($(findstring -ffast-math,$(CFLAGS))$(findstring -Ofast,$(CFLAGS))$(findstring -ffast-math,$(ARCH)),)
  $(error -ffast-math and -Ofast are refused: NaN checks and bit-for-bit results do not survive them)
endif

SANITIZE = 0
ifeq ($(SANITIZE),1)
  CFLAGS ?= -O1 -g1
  STRICT_FLAGS += -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
endif
CFLAGS ?= -O3

ifeq ($(WERROR),1)
  STRICT_FLAGS += -Werror
endif

# What needs no compiler needs no probing.
ifneq ($(filter-out clean help doctor,$(or $(MAKECMDGOALS),all)),)

  ifeq ($(origin ARCH),undefined)
    MACHINE := $(shell uname -m)
    ARCH_CHOICES := $(if $(filter arm% aarch64,$(MACHINE)),-mcpu=native -march=native,-march=native -mcpu=native)
    ARCH := $(firstword $(foreach flag,$(ARCH_CHOICES),$(if $(call accepts,$(flag),$(EMPTY_PROGRAM)),$(flag))))
  endif

  # OpenMP: gcc brings libgomp; clang needs libomp (Debian: libomp-dev); Apple's clang needs Homebrew's libomp and a
  # word to the preprocessor. Without it the programs run on one thread.
  ifneq ($(OPENMP),0)
    ifeq ($(call accepts,-fopenmp,$(OPENMP_PROGRAM)),yes)
      OPENMP_FLAGS := -fopenmp
    else ifeq ($(shell uname -s),Darwin)
      LIBOMP := $(shell brew --prefix libomp 2>/dev/null)
      ifeq ($(call accepts,-Xpreprocessor -fopenmp -I$(LIBOMP)/include,$(OPENMP_PROGRAM),-L$(LIBOMP)/lib -lomp),yes)
        OPENMP_FLAGS := -Xpreprocessor -fopenmp -I$(LIBOMP)/include
        OPENMP_LIBS  := -L$(LIBOMP)/lib -lomp
      endif
    endif
    ifeq ($(OPENMP_FLAGS),)
      ifeq ($(MAKELEVEL),0)
        $(info No OpenMP with $(CC): building for one thread; `make doctor` says how to get it. OPENMP=0 silences this)
      endif
    endif
  endif
  ifeq ($(OPENMP_FLAGS),)
    OPENMP_FLAGS := -Wno-unknown-pragmas
  endif

endif

COMPILE = $(CC) $(STRICT_FLAGS) $(CFLAGS) $(ARCH) $(OPENMP_FLAGS) $(CPPFLAGS) -I.
LIBS    = $(LDFLAGS) $(OPENMP_LIBS) -lm $(LDLIBS)

# The record of the command line: written only when it changes, and everything depends on it.
ifneq ($(OPENMP_FLAGS),)
  RECORD := $(shell mkdir -p $(BUILD) && cd $(BUILD) && echo '$(COMPILE) $(LIBS)' > flags.new && \
      if cmp -s flags.new flags; then rm flags.new; else mv flags.new flags; fi)
endif
DEPENDS = -MMD -MP -MT $@ -MF $(BUILD)/$(@F).d

TESTS   = $(patsubst dev/test/%.c,$(BUILD)/%,$(wildcard dev/test/test_*.c))
FUZZERS = $(patsubst dev/test/%.c,$(BUILD)/%,$(filter-out dev/test/fuzz_main.c,$(wildcard dev/test/fuzz_*.c)))
PYTHON_TESTS = $(wildcard dev/test/test_*.py)

# --- targets ---------------------------------------------------------------------------------------------------------
.PHONY: all tests fuzzers test bench-cpu sanitize fuzz run-fuzzers headers doctor clean help
.DELETE_ON_ERROR:

all: $(addprefix $(PREFIX),$(PROGRAMS)) ## the CPU programs: train_gpt2, test_gpt2, tokenize (the default)

# One source file each: everything else is headers. The old program goes first, so that a failed build leaves none
# behind, and a running one is not written over.
$(addprefix $(PREFIX),$(PROGRAMS)): $(PREFIX)%: %.c $(BUILD)/flags
	@mkdir -p $(@D) && rm -f $@
	$(COMPILE) $(DEPENDS) -o $@ $< $(LIBS)

$(BUILD)/test_%: dev/test/test_%.c $(BUILD)/flags
	@rm -f $@
	$(COMPILE) $(DEPENDS) -o $@ $< $(LIBS)

$(BUILD)/fuzz_main.o: dev/test/fuzz_main.c $(BUILD)/flags
	$(COMPILE) $(DEPENDS) -c -o $@ $<

$(BUILD)/fuzz_%: dev/test/fuzz_%.c $(BUILD)/fuzz_main.o $(BUILD)/flags
	@rm -f $@
	$(COMPILE) $(DEPENDS) -o $@ $< $(BUILD)/fuzz_main.o $(LIBS)

$(BUILD)/libfuzzer_%: dev/test/fuzz_%.c $(BUILD)/flags
	@rm -f $@
	$(COMPILE) -fsanitize=fuzzer $(DEPENDS) -o $@ $< $(LIBS)

$(BUILD)/bench_cpu: dev/bench/bench_cpu.c $(BUILD)/flags
	@rm -f $@
	$(COMPILE) $(DEPENDS) -o $@ $< $(LIBS) -ldl

-include $(wildcard $(BUILD)/*.d)

tests: $(TESTS) ## the unit tests, built into build/

fuzzers: $(FUZZERS)

# The short form of scripts/test.sh: this compiler, these flags, one after another.
test: all tests ## build and run the unit tests, test_gpt2 and the Python tests (scripts/test.sh does much more)
	@failed=; for program in $(TESTS) $(or $(BIN),.)/test_gpt2; do \
	    $$program || failed="$$failed $$program"; done; \
	for script in $(PYTHON_TESTS); do \
	    TRAIN_GPT2=$(or $(BIN),.)/train_gpt2 TOKENIZE=$(or $(BIN),.)/tokenize \
	        python3 $$script || failed="$$failed $$script"; done; \
	test -z "$$failed" || { echo "make test: failed:$$failed"; exit 1; }

bench-cpu: all $(BUILD)/bench_cpu ## measure the FMA peak, the matrix multiply and the training step of this machine
	$(BUILD)/bench_cpu

SANITIZED = $(MAKE) SANITIZE=1 BUILD=build/sanitize BIN=build/sanitize
sanitize: ## programs and tests with AddressSanitizer and UndefinedBehaviorSanitizer, built into build/sanitize/ and run
	$(SANITIZED) test

FUZZ_ITERATIONS = 3000
fuzz: ## every file reader on mutated input; FUZZ_SECONDS=600: with libFuzzer (needs clang), so long each
	$(SANITIZED) $(if $(FUZZ_SECONDS),CC=clang) run-fuzzers

ifeq ($(FUZZ_SECONDS),)
run-fuzzers: $(FUZZERS)
	@for fuzzer in $(FUZZERS); do echo "$$fuzzer $(FUZZ_ITERATIONS)"; $$fuzzer $(FUZZ_ITERATIONS) || exit 1; done
else
run-fuzzers: $(FUZZERS) $(FUZZERS:$(BUILD)/fuzz_%=$(BUILD)/libfuzzer_%)
	@for fuzzer in $(FUZZERS:$(BUILD)/fuzz_%=%); do echo "fuzz_$$fuzzer: $(FUZZ_SECONDS) s"; \
	    corpus=$(BUILD)/corpus_$$fuzzer; mkdir -p $$corpus && $(BUILD)/fuzz_$$fuzzer --seeds $$corpus && \
	    $(BUILD)/libfuzzer_$$fuzzer -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=$(BUILD)/found_$$fuzzer. \
	        $$corpus || exit 1; done
endif

headers: ## every header alone as C11 and C++17, and two objects that include them all
	dev/test/test_headers.sh

doctor: ## what this machine has (compilers, OpenMP, CUDA, ...), what each is for, how to get it
	@dev/doctor.sh

clean: ## remove what was built; run folders stay
	rm -rf build $(PROGRAMS)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
	@echo; sed -n 's/^#   make/  make/p' Makefile
