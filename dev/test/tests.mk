# How the tests, the fuzzers and the benchmarks are built and run. The Makefile includes this file.
.PHONY: tests fuzzers test test-emu bench-cpu ladder-cpu bench-gpu ladder ladder-gpu chapters projects book sanitize fuzz run-fuzzers

# Prerequisites are read at once, so these names stand before them.
ALL_UNITS = $(filter-out comm gpt2 layers llama3 model trainer,$(patsubst test_%.c,%,$(notdir \
              $(wildcard dev/test/*/test_*.c))))
UNITS    := $(ALL_UNITS)
TESTS     = $(BUILD)/unit_tests $(BUILD)/test_trainer $(BUILD)/test_llama3 $(BUILD)/test_comm
FUZZERS   = $(patsubst %.c,$(BUILD)/%,$(notdir $(wildcard dev/test/*/fuzz_*.c)))
ORACLE    = $(BUILD)/oracle.o $(BUILD)/oracle_llama3.o

# QUICK=1 is for scripts/test.sh: each suite is in one of its two builds. Sanitizers look at the rooms that handle text,
# files and processes, but for suites that take long and whose files fuzzers read. Without QUICK=1 a build has all.
MEMORY_ROOMS = base data files ranks run
MEMORY_UNITS = $(filter-out comm kill pieces tokenizer,$(patsubst test_%.c,%,$(notdir \
                 $(wildcard $(MEMORY_ROOMS:%=dev/test/%/test_*.c)))))
ifeq ($(QUICK),1)
  UNITS   := $(if $(filter 1,$(SANITIZE)),$(MEMORY_UNITS),$(filter-out $(MEMORY_UNITS),$(ALL_UNITS)))
endif

tests: $(TESTS) ## the unit tests, built into build/

fuzzers: $(FUZZERS)

PYTEST = python3 -m pytest --builds=$(BUILD) dev/test
test: all $(PREFIX)test_gpt2 tests ## build and run the tests that need no emulator (scripts/test.sh does much more)
	$(PYTEST) --ignore-glob='*/test_gpu_*.py' --ignore-glob='*.cuh' --ignore-glob='*/test/emu/*' \
	    --ignore-glob='*/test_emu_*.py' -k 'not emucc and not headers_of_cuda and not two_objects'

test-emu: $(patsubst %.cu,$(BUILD)/emu/%,gpu_tests.cu $(notdir $(wildcard dev/test/emu/emu_*.cu)))
test-emu: $(addprefix $(PREFIX),train_gpt2 train_gpt2emu) ## build and run the tests of the emulator and the GPU trainer
	$(PYTEST) -k 'gpu or kernels or emu or pytorch'

bench-cpu: all ## measure the peak of this machine and the training step, beside PyTorch where it is installed
	python3 dev/bench/bench_cpu.py

ladder-cpu: $(BUILD)/ladder ## from naive loops to our matrix multiply: GFLOP/s and fraction of the peak of each step
	$(BUILD)/ladder

LADDERS = embedding layernorm matmul matmul_backward attention attention_backward classifier adamw
# $(call run,PROGRAMS,ARGUMENT): builds them on all cores, 2 minutes the first time for the ladders; runs them in order.
define run
@echo "Building $(words $(1)) programs ..." >&2
@$(MAKE) --no-print-directory -s $(if $(findstring -j,$(MAKEFLAGS)),,-j$$(getconf _NPROCESSORS_ONLN || echo 2)) $(1)
@for program in $(1); do $$program $(2) || exit 1; done
endef

ladder: ## without a GPU: the GPU's layers from naive to ours, and their bounds; COLUMNS=all: every count
	$(call run,$(LADDERS:%=$(BUILD)/emu/ladder_%),$(if $(filter all,$(COLUMNS)),--all-columns))

ladder-gpu: ## the same on a GPU: the time of each version
	$(call run,$(LADDERS:%=$(BUILD)/cuda/ladder_%))

bench-gpu: $(BUILD)/cuda/bench_gpu ## measure each kernel of the GPU trainer against what the hardware can do
	$(BUILD)/cuda/bench_gpu

SANITIZED = $(MAKE) SANITIZE=1 BUILD=build/sanitize BIN=build/sanitize
sanitize: ## programs and tests with AddressSanitizer and UndefinedBehaviorSanitizer, built into build/sanitize/ and run
	$(SANITIZED) test

FUZZ_ITERATIONS = 3000
fuzz: ## every file reader on mutated input; FUZZ_SECONDS=600: with libFuzzer (needs clang), so long each
	$(SANITIZED) $(if $(FUZZ_SECONDS),CC=clang) run-fuzzers

run-fuzzers: $(FUZZERS) $(if $(FUZZ_SECONDS),$(FUZZERS:$(BUILD)/fuzz_%=$(BUILD)/libfuzzer_%))
	@for name in $(FUZZERS:$(BUILD)/fuzz_%=%); do fuzzer=$(BUILD)/fuzz_$$name; echo "$$fuzzer"; \
	    if [ -z "$(FUZZ_SECONDS)" ]; then $$fuzzer $(FUZZ_ITERATIONS) || exit 1; continue; fi; \
	    corpus=$(BUILD)/corpus_$$name; mkdir -p $$corpus && $$fuzzer --seeds $$corpus && $(BUILD)/libfuzzer_$$name \
	        -max_total_time=$(FUZZ_SECONDS) -artifact_prefix=$(BUILD)/found_$$name. $$corpus || exit 1; done

# --- the book: `make chapter-3` runs the program of chapter 3 ---------------------------------------------------------
CHAPTERS = $(patsubst dev/exercises/%/,%,$(wildcard dev/exercises/*/))
# $(call run_chapters,NAMES): their programs. Chapters about kernels run in the emulator.
run_chapters = $(call run,$(foreach name,$(1),\
                   $(BUILD)/$(if $(wildcard dev/exercises/$(name)/*.cu),emu/)chapter_$(name)))

chapter-%:
	$(if $(filter 0$*_% $*_%,$(CHAPTERS)),,$(error chapter-$*: there is no such chapter in dev/exercises))
	$(call run_chapters,$(filter 0$*_% $*_%,$(CHAPTERS)))

chapters: ## the worked examples and the exercises of the chapters in doc/; make chapter-3: of one chapter
	$(call run_chapters,$(filter-out projects_%,$(CHAPTERS)))

projects: ## what grades the projects of doc/projects.md
	$(call run_chapters,$(filter projects_%,$(CHAPTERS)))

book: ## the book as pages for a browser, in build/book: formulas, a search, figures that move
	python3 dev/book/build.py $(BUILD)/book

# The reader's program finds writes and reads out of bounds, where the compiler has its sanitizers' libraries.
WATCHED = -g1 -fsanitize=address,undefined -fno-sanitize-recover=all
$(BUILD)/chapter_%: COMPILE_TEST += $(shell echo 'int main(void) { return 0; }' | \
    $(CC) $(WATCHED) -x c -o /dev/null - 2>/dev/null && echo '$(WATCHED)')
$(BUILD)/chapter_%: dev/exercises/%/chapter.c $(ORACLE) $(BUILD)/flags
	$(build_test)

$(BUILD)/emu/chapter_%: dev/exercises/%/chapter.cu $(ORACLE) $(BUILD)/emu.ready
	$(build_emu)

# All of them in one program, as they are and with our solutions in the reader's place, for test_book.py.
$(BUILD)/book.cu: dev/exercises/one_program.sh $(wildcard dev/exercises/*/*)
	dev/exercises/one_program.sh >$@

$(BUILD)/emu/book: COMPILE_EMU += -O0
$(BUILD)/emu/book: $(BUILD)/book.cu $(ORACLE) $(BUILD)/emu.ready
	$(build_emu)

# --- unit tests and fuzzers ------------------------------------------------------------------------------------------
# The unit tests are one program, unit_tests, and each file can be a program of its own, test_<file>. Three are never a
# part of unit_tests: test_comm, which starts itself as several processes, and test_trainer and test_llama3, which
# include the trainers.
vpath %.c $(wildcard dev/test/*)
vpath %.cu $(wildcard dev/test/*) dev/bench
# Unit tests compile with -O1, in a third of the time of -O3; in a quick run with less, because they run once.
TEST_CFLAGS  := $(if $(filter-out file,$(origin CFLAGS))$(filter 1,$(SANITIZE)),$(CFLAGS),-O1)
TEST_CFLAGS  := $(if $(filter 1,$(QUICK)),$(if $(filter 1,$(SANITIZE)),-O0 -g1,-Og),$(TEST_CFLAGS))
COMPILE_TEST = $(subst $(CFLAGS),$(TEST_CFLAGS),$(COMPILE))
# A program of one source and objects.
define build_test
@rm -f $@
$(COMPILE_TEST) $(DEPENDS) -o $@ $< $(filter %.o,$^) $(LIBS)
endef

# The processes that it starts find each other through MPI, too.
$(BUILD)/test_comm: COMPILE += $(MPI_FLAGS)
$(BUILD)/test_comm: LIBS += $(MPI_LIBS) $(MPI_RPATH)
$(BUILD)/test_comm: $(BUILD)/flags.mpi

$(BUILD)/test_comm $(BUILD)/test_trainer $(BUILD)/test_llama3: $(BUILD)/%: %.c $(BUILD)/flags
	$(build_test)

# What gcc fuses depends on the optimisation, and the bits of the matrix multiply must not. Vectors are slow without it.
$(BUILD)/unit/test_gemm.o $(BUILD)/unit/test_simd.o: COMPILE_TEST = $(COMPILE)
# These take five seconds longer with -O0.
$(BUILD)/unit/test_rand.o $(BUILD)/unit/test_zero.o: TEST_CFLAGS := $(subst -O0,-Og,$(TEST_CFLAGS))

$(BUILD)/unit/test_%.o: test_%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(COMPILE_TEST) $(DEPENDS) -c -o $@ $<

RECORD := $(if $(filter %unit_tests tests test,$(MAKECMDGOALS)),$(call record,units,$(UNITS)))
$(BUILD)/unit_tests: dev/test/unit_tests.c $(UNITS:%=$(BUILD)/unit/test_%.o) $(BUILD)/units
	$(build_test)

$(ALL_UNITS:%=$(BUILD)/test_%): $(BUILD)/test_%: dev/test/unit_tests.c $(BUILD)/unit/test_%.o
	$(build_test)

$(BUILD)/fuzz_main.o: dev/test/fuzz_main.c $(BUILD)/flags
	$(COMPILE_TEST) $(DEPENDS) -c -o $@ $<

$(BUILD)/fuzz_%: fuzz_%.c $(BUILD)/fuzz_main.o $(BUILD)/flags
	$(build_test)

$(BUILD)/libfuzzer_%: COMPILE_TEST = $(COMPILE) -fsanitize=fuzzer
$(BUILD)/libfuzzer_%: fuzz_%.c $(BUILD)/flags
	$(build_test)

$(BUILD)/ladder: COMPILE_TEST = $(COMPILE)
# The plain steps of the ladder twice: as usual, in ladder.c, and number by number.
$(BUILD)/ladder_scalar.o: dev/cpu/plain.c $(BUILD)/flags
	$(COMPILE) -DPLAIN=plain_scalar -DLANES=1 -fno-tree-vectorize -fno-tree-slp-vectorize $(DEPENDS) -c -o $@ $<

$(BUILD)/ladder: dev/cpu/ladder.c $(BUILD)/ladder_scalar.o $(BUILD)/flags
	$(build_test)

# --- tests of the GPU code, for the emulator and for a GPU -----------------------------------------------------------
COMPILE_ORACLE = $(CCACHE) $(CC) -std=gnu11 -Wall -Wextra -O1 $(ARCH) -Wno-unknown-pragmas -I.

ifneq ($(CUDA_GOALS)$(EMU_GOALS)$(filter $(BUILD)/chapter%,$(MAKECMDGOALS)),)
  RECORD := $(call record,flags.oracle,$(COMPILE_ORACLE))
endif

# A program of one source and, if it compares with the CPU's layers, these.
define build_cuda
@mkdir -p $(@D) && rm -f $@
$(COMPILE_CUDA) $(DEPENDS) -o $@ $< $(filter %.o,$^) $(CUDA_LIBS)
endef
define build_emu
@mkdir -p $(@D) && rm -f $@
$(COMPILE_EMU) $(DEPENDS) -o $@ $< $(filter %.o,$^) $(EMU_LIBS)
endef

$(BUILD)/cuda/%: %.cu $(ORACLE) $(BUILD)/flags.cuda
	$(build_cuda)

$(BUILD)/cuda/ladder_%: dev/cuda/%.cu $(ORACLE) $(BUILD)/flags.cuda
	$(build_cuda)

# These count what kernels do.
METERED = ladder_% chapter_% book emu_meter
$(METERED:%=$(BUILD)/emu/%): COMPILE_EMU += --meter

# In a quick run optimising these would take longer than it saves.
$(addprefix $(BUILD)/emu/emu_,bugs features meter nccl): COMPILE_EMU += $(if $(filter 1,$(QUICK)),-O0)
$(BUILD)/emu/emu_%: emu_%.cu $(BUILD)/emu.ready
	$(build_emu)

# In a quick run the trainers are linked of the objects of their tests.
$(PREFIX)train_gpt2emu: $(if $(QUICK:0=),$(BUILD)/emu/gpu_tests.o $(ORACLE))
$(PREFIX)train_llama3emu: $(if $(QUICK:0=),$(BUILD)/test_llama3emu.o $(ORACLE))
$(PREFIX)test_gpt2emu $(PREFIX)test_llama3emu: $(PREFIX)%: $(BUILD)/%.o

$(BUILD)/emu/gpu_tests.o: gpu_tests.cu $(BUILD)/emu.ready
	@mkdir -p $(@D)
	$(COMPILE_EMU) -D'PROGRAM_NAME="train_gpt2emu"' $(DEPENDS) -c -o $@ $<

$(BUILD)/emu/gpu_tests: $(BUILD)/emu/gpu_tests.o $(ORACLE)
	$(COMPILE_EMU) -o $@ $(filter %.o,$^) $(EMU_LIBS)

# The GPU trainer in one file. nvcc builds it as its first lines say.
$(BUILD)/emu/train_gpt2_simple: doc/simple/train_gpt2_simple.cu $(BUILD)/emu.ready
	$(build_emu)

$(BUILD)/emu/%: %.cu $(ORACLE) $(BUILD)/emu.ready
	$(build_emu)

$(BUILD)/emu/ladder_%: dev/cuda/%.cu $(ORACLE) $(BUILD)/emu.ready
	$(build_emu)

# The CPU trainers' layers, which the GPU tests compare with.
$(addprefix $(PREFIX),test_gpt2cu test_gpt2emu test_llama3cu test_llama3emu): $(ORACLE)
$(ORACLE): $(BUILD)/%.o: dev/test/layers/%.c $(BUILD)/flags.oracle
	$(COMPILE_ORACLE) -MMD -MP -MT $@ -MF $@.d -c -o $@.$$$$ $< && mv $@.$$$$ $@
