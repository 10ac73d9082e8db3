# gpt2.c: `make` builds the CPU programs, `make train_gpt2cu` the GPU trainer, `make help` lists the rest.
# GNU make 3.81 or later, gcc or clang; for the GPU the CUDA toolkit, 12 or later.
#
#   make train_gpt2cu      the GPU trainer, with nvcc; test_gpt2cu: its test against PyTorch's numbers
#   make train_gpt2emu     the same source for the CPU, with the emulator of dev/emu; test_gpt2emu: its test
#
#   make CC=clang          another compiler
#   make ARCH=             for any processor of this kind, not for this one only (ARCH=-march=haswell: for that one)
#   make OPENMP=0          one thread, no OpenMP
#   make CFLAGS="-O0 -g"   instead of -O3 (emulated programs: -O1), e.g. for a debugger
#   make WERROR=1          warnings are errors (the tests build so)
#
# For the GPU programs and the emulated ones:
#
#   make PRECISION=FP32    instead of BF16
#   make GPU_ARCH=90       compute capability 9.0, or several: "80 90". Without it: the GPU that is here; else 80 90 100
#   make NVCC=.. CXX=..    other compilers than nvcc from CUDA_HOME, PATH or /usr/local/cuda, and g++
#   make NVCCFLAGS="-G -g" instead of the optimised host code and -lineinfo, e.g. for cuda-gdb
#   make NCCL=0            one GPU only, without NCCL; NCCL=1: not without it; NCCL_HOME=/folder: where it is
#   make CUDNN=0           attention without cuDNN 9, by our own kernels; CUDNN=1, CUDNN_HOME=/folder likewise
#   make MPI=0             several GPUs start by TCP or a folder, not by mpirun; MPI=1, MPI_HOME=/folder likewise
#
# A header or a flag that changes rebuilds what depends on it.

PROGRAMS = train_gpt2 test_gpt2 tokenize
GPU_PROGRAMS = train_gpt2cu test_gpt2cu train_gpt2emu test_gpt2emu
BIN      =#      where the programs go; empty: here
BUILD    = build# where tests, dependency files and the record of the flags go
PREFIX   = $(if $(BIN),$(BIN)/)

# --- the compiler: gcc, else clang, else whatever cc is --------------------------------------------------------------
ifeq ($(origin CC),default)
  CC := $(firstword $(foreach name,gcc clang cc,$(if $(shell command -v $(name) 2>/dev/null),$(name))) cc)
endif
# Its C++ sibling, for the host side of CUDA and for the emulator: gcc-13 and g++-13, clang and clang++, cc and c++.
ifeq ($(origin CXX),default)
  CXX := $(or $(if $(findstring clang,$(CC)),$(subst clang,clang++,$(CC))), \
              $(if $(findstring gcc,$(CC)),$(subst gcc,g++,$(CC))),c++)
endif

# $(call take,COMMAND): takes the words that a script prints, each of them NAME=value or NAME+=value.
take = $(foreach word,$(shell $(1) || echo TAKE_FAILED=1),$(eval $(word)))$(if $(TAKE_FAILED),$(error \
         $(firstword $(filter dev/%,$(1))) says above what is missing))

# --- the flags -------------------------------------------------------------------------------------------------------
# Floating point: contraction into FMA and "math functions do not set errno" are the only liberties. -ffast-math would
# drop the NaN checks and reorder sums, so it is refused even when asked for.
STRICT_FLAGS = -std=gnu11 -Wall -Wextra -ffp-contract=fast -fno-math-errno
ifneq ($(findstring -ffast-math,$(CFLAGS))$(findstring -Ofast,$(CFLAGS))$(findstring -ffast-math,$(ARCH)),)
  $(error -ffast-math and -Ofast are refused: NaN checks and bit-for-bit results do not survive them)
endif

SANITIZE = 0
ifeq ($(SANITIZE),1)
  CFLAGS ?= -Og -g1
  STRICT_FLAGS += -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
endif
CFLAGS ?= -O3

ifeq ($(WERROR),1)
  STRICT_FLAGS += -Werror
endif

PRECISION = BF16
ifeq ($(filter BF16 FP32,$(PRECISION)),)
  $(error PRECISION=$(PRECISION): expected BF16 or FP32)
endif
PRECISION_FLAGS = $(if $(filter FP32,$(PRECISION)),-DPRECISION_FP32)

# What needs no compiler needs no probing.
ifneq ($(filter-out clean help doctor,$(or $(MAKECMDGOALS),all)),)
  OPENMP_FLAGS :=
  OPENMP_LIBS  :=
  $(call take,CC='$(CC)' dev/probe_compiler.sh $(if $(filter undefined,$(origin ARCH)),arch) \
                                               $(if $(filter 0,$(OPENMP)),,openmp))
  ifeq ($(OPENMP_FLAGS),)
    OPENMP_FLAGS := -Wno-unknown-pragmas
    ifeq ($(filter 0,$(OPENMP))$(MAKELEVEL),0)
      $(info No OpenMP with $(CC): building for one thread; `make doctor` says how to get it. OPENMP=0 silences this)
    endif
  endif
endif

COMPILE = $(CC) $(STRICT_FLAGS) $(CFLAGS) $(ARCH) $(OPENMP_FLAGS) $(CPPFLAGS) -I.
LIBS    = $(LDFLAGS) $(OPENMP_LIBS) -pthread -lm $(LDLIBS)

# $(call record,NAME,COMMAND): the record of a command line in $(BUILD)/NAME: written only when it changes, and what
# the command builds depends on it.
record = $(call record_in,$(BUILD),$(1),$(2))
record_in = $(shell mkdir -p $(1) && cd $(1) && echo '$(3)' > $(2).$$$$ && \
              if cmp -s $(2).$$$$ $(2); then rm $(2).$$$$; else mv $(2).$$$$ $(2); fi)
# The revision that the trainers write down in run.json: a source of its own, so that a commit compiles no more than
# that, and links. Empty for a copy of the source without .git.
ifneq ($(OPENMP_FLAGS),)
  RECORD   := $(call record,flags,$(COMPILE) $(LIBS))
  REVISION := $(shell GIT_OPTIONAL_LOCKS=0 git --git-dir=.git describe --always --abbrev=40 --exclude='*' --dirty \
                2>/dev/null)
  RECORD   := $(call record,revision.c,const char *gpt2c_revision(void) { return "$(REVISION)"; })
endif

CUDA_GOALS := $(filter %cu $(BUILD)/cuda/% bench-gpu,$(MAKECMDGOALS))
EMU_GOALS  := $(filter %emu $(BUILD)/emu/% test-emu,$(MAKECMDGOALS))
MPI_GOALS  := $(CUDA_GOALS) $(EMU_GOALS) $(filter test tests $(BUILD)/test_comm,$(MAKECMDGOALS))

# --- several GPUs: MPI, one of the ways to start their processes ------------------------------------------------------
NCCL  =
CUDNN =
MPI   =
ifneq ($(filter-out 0 1,$(NCCL) $(CUDNN) $(MPI)),)
  $(error NCCL=$(NCCL) CUDNN=$(CUDNN) MPI=$(MPI): expected 0 (build without) or 1 (refuse to build without); \
    NCCL_HOME=/folder, CUDNN_HOME=/folder and MPI_HOME=/folder say where they are)
endif

# $(call find,WHAT,VARIABLES): takes what dev/find_libraries.sh finds, which is told these variables.
find = $(call take,$(foreach name,$(2),$(name)='$($(name))') QUIET=$(filter-out 0,$(MAKELEVEL)) \
                    dev/find_libraries.sh $(1))

MPI_FLAGS :=
MPI_LIBS  :=
ifneq ($(strip $(MPI_GOALS)),)
  $(if $(filter 0,$(MPI)),,$(call find,mpi,CC MPI MPI_HOME))
  RECORD := $(call record,flags.mpi,$(MPI_FLAGS) $(MPI_LIBS))
endif
MPI_FOLDERS := $(patsubst -L%,%,$(filter -L%,$(MPI_LIBS))) # where programs find it again
MPI_RPATH   := $(MPI_FOLDERS:%=-Wl,-rpath,%)

# --- CUDA and the emulator: for goals that ask for them, since most machines have no nvcc -----------------------------

ORACLE = build/oracle.o
COMPILE_ORACLE = $(CC) -std=gnu11 -Wall -Wextra -O2 $(ARCH) -Wno-unknown-pragmas -I.

ifneq ($(CUDA_GOALS)$(EMU_GOALS),)
  RECORD := $(call record_in,build,flags.oracle,$(COMPILE_ORACLE))
  CXX_OPENMP :=
  $(if $(filter 0,$(OPENMP)),,$(call take,CXX='$(CXX)' dev/probe_compiler.sh cxx_openmp))
  CXX_FLAGS := -Wall -Wextra $(if $(filter 1,$(WERROR)),-Werror) $(or $(CXX_OPENMP),-Wno-unknown-pragmas)
endif

ifneq ($(CUDA_GOALS),)
  ifeq ($(SANITIZE),1)
    $(error SANITIZE=1 is for the CPU programs and the emulated ones (train_gpt2emu); a GPU has compute-sanitizer)
  endif

  # Sets CUDA_RELEASE, NVCC, GPU_ARCHS, CUDA_FLAGS and CUDA_LIBS. cuDNN is for attention in bf16.
  CUDA_FLAGS :=
  CUDA_LIBS  :=
  GPU_ARCHS  :=
  $(call find,make,NVCC CXX CUDA_HOME CUDA_PATH NCCL_HOME CUDNN_HOME NCCL CUDNN GPU_ARCH PRECISION)
  # Machine code for each GPU, and PTX, which the driver of a newer GPU translates.
  GENCODE := $(foreach arch,$(GPU_ARCHS),-gencode arch=compute_$(arch),code=[sm_$(arch),compute_$(arch)]) \
             $(if $(word 2,$(GPU_ARCHS)),--threads 0)

  # clang takes the unused functions of CUDA's own headers for ours.
  NVCC_CXX_FLAGS := $(addprefix -Xcompiler ,$(CXX_FLAGS) $(if $(findstring clang,$(CXX)),-Wno-unused-function)) \
                    $(if $(filter 1,$(WERROR)),-Werror all-warnings)
  CUDA_LIBS += $(MPI_LIBS) -lpthread -ldl $(foreach folder,$(MPI_FOLDERS),-Xlinker -rpath -Xlinker $(folder))
  # -Og is for the host, which has little to do (-O1 takes half as long again, -O2 three times as long): device code is
  # always optimised. -lineinfo costs nothing at run time; with it compute-sanitizer and the profilers name lines.
  # Kernels are compiled by eight threads from CUDA 13 on: 12.4 knows the option too, but its own compiler complains.
  # The number is in the program file, and every rank must run the same file. So it does not depend on the machine's
  # cores.
  EIGHT_THREADS := $(if $(filter-out 12.%,$(CUDA_RELEASE)),-split-compile=8 -Xptxas --split-compile=8)
  NVCCFLAGS    ?= -Xcompiler -Og -lineinfo $(EIGHT_THREADS)
  COMPILE_CUDA := $(NVCC) -ccbin $(CXX) -std=c++17 $(NVCCFLAGS) $(GENCODE) $(NVCC_CXX_FLAGS) $(PRECISION_FLAGS) \
                  $(CUDA_FLAGS) $(MPI_FLAGS) $(CPPFLAGS) -I.
  RECORD := $(call record,flags.cuda,$(CUDA_RELEASE) $(COMPILE_CUDA) $(CUDA_LIBS))
endif

ifneq ($(EMU_GOALS),)
  # Line tables are always there, since the emulator's reports name lines. -O1: the programs run as fast as with -O2,
  # which takes three times as long to compile. Its own objects serve every BUILD. It has a NCCL of its own.
  EMU_CFLAGS  := -g1 $(if $(filter-out file,$(origin CFLAGS)),$(CFLAGS),-O1) $(if $(filter 1,$(SANITIZE)),--sanitize) \
                 $(ARCH)
  COMPILE_EMU := CXX=$(CXX) dev/emu/emucc --build build/emu $(EMU_CFLAGS) $(CXX_FLAGS) $(PRECISION_FLAGS) \
                 $(if $(filter 0,$(NCCL)),,-DUSE_NCCL) $(if $(filter 0,$(CUDNN)),,-DUSE_CUDNN) \
                 $(MPI_FLAGS) $(CPPFLAGS) -I.
  EMU_LIBS    := $(MPI_LIBS) $(MPI_RPATH) -ldl
  RECORD      := $(call record,flags.emu,$(COMPILE_EMU) $(EMU_LIBS))
endif

DEPENDS = -MMD -MP -MT $@ -MF $(BUILD)/$(@F).d

# The unit tests are one program, unit_tests, and each suite can be a program of its own, test_<suite>. test_comm starts
# itself as several processes, so it is never a part of unit_tests.
UNITS   = $(filter-out comm,$(patsubst test_%.c,%,$(notdir $(wildcard dev/test/*/test_*.c))))
TESTS   = $(BUILD)/unit_tests $(BUILD)/test_comm
FUZZERS = $(patsubst %.c,$(BUILD)/%,$(notdir $(wildcard dev/test/*/fuzz_*.c)))
vpath %.c $(wildcard dev/test/*)
vpath %.cu $(wildcard dev/test/*)
# Unit tests compile with -O1, in a third of the time of -O3.
TEST_CFLAGS  := $(if $(filter-out file,$(origin CFLAGS))$(filter 1,$(SANITIZE)),$(CFLAGS),-O1)
COMPILE_TEST = $(subst $(CFLAGS),$(TEST_CFLAGS),$(COMPILE))

# --- targets ---------------------------------------------------------------------------------------------------------
.PHONY: all tests fuzzers test test-emu bench-cpu bench-gpu sanitize fuzz run-fuzzers headers doctor clean help
.DELETE_ON_ERROR:

all: $(addprefix $(PREFIX),$(PROGRAMS)) ## the CPU programs: train_gpt2, test_gpt2, tokenize (the default)

# One source file each: everything else is headers. The old program goes first, so that a failed build leaves none
# behind, and a running one is not written over.
$(addprefix $(PREFIX),$(filter-out train_gpt2,$(PROGRAMS))): $(PREFIX)%: %.c $(BUILD)/flags
	@mkdir -p $(@D) && rm -f $@
	$(COMPILE) $(DEPENDS) -o $@ $< $(LIBS)

# The trainers in two steps, for the revision.
$(BUILD)/revision.o: $(BUILD)/revision.c
	$(CC) -c -o $@ $<

$(BUILD)/train_gpt2.o: train_gpt2.c $(BUILD)/flags
	@rm -f $@ $(PREFIX)train_gpt2
	$(COMPILE) $(DEPENDS) -c -o $@ $<

$(PREFIX)train_gpt2: $(BUILD)/train_gpt2.o $(BUILD)/revision.o
	@mkdir -p $(@D) && rm -f $@
	$(COMPILE) -o $@ $(filter %.o,$^) $(LIBS)

# One CUDA source, two programs: with nvcc for the GPU, with emucc for the CPU.
GPU_DEPENDS = -MMD -MP -MT $@ -MF $(BUILD)/$(subst /,_,$@).d
define build_cuda
@mkdir -p $(@D) && rm -f $@
$(COMPILE_CUDA) $(GPU_DEPENDS) -o $@ $< $(filter %.o,$^) $(CUDA_LIBS)
endef
define build_emu
@mkdir -p $(@D) && rm -f $@
$(COMPILE_EMU) $(GPU_DEPENDS) -o $@ $< $(filter %.o,$^) $(EMU_LIBS)
endef

$(PREFIX)test_gpt2cu: test_gpt2.cu $(BUILD)/flags.cuda
	$(build_cuda)

$(PREFIX)test_gpt2emu: test_gpt2.cu $(BUILD)/emu.ready
	$(build_emu)

# Without -objtemp the program has the random name of a temporary file in it, and no two builds are equal.
$(BUILD)/train_gpt2cu.o: train_gpt2.cu $(BUILD)/flags.cuda
	@rm -f $@ $(PREFIX)train_gpt2cu
	$(COMPILE_CUDA) -objtemp $(GPU_DEPENDS) -c -o $@ $<

$(BUILD)/train_gpt2emu.o: train_gpt2.cu $(BUILD)/emu.ready
	@rm -f $@ $(PREFIX)train_gpt2emu
	$(COMPILE_EMU) $(GPU_DEPENDS) -c -o $@ $<

$(PREFIX)train_gpt2cu: $(BUILD)/train_gpt2cu.o $(BUILD)/revision.o
	@mkdir -p $(@D) && rm -f $@
	$(COMPILE_CUDA) -o $@ $(filter %.o,$^) $(CUDA_LIBS)

$(PREFIX)train_gpt2emu: $(BUILD)/train_gpt2emu.o $(BUILD)/revision.o
	@mkdir -p $(@D) && rm -f $@
	$(COMPILE_EMU) -o $@ $(filter %.o,$^) $(EMU_LIBS)

$(BUILD)/cuda/%: %.cu $(ORACLE) $(BUILD)/flags.cuda
	$(build_cuda)

$(BUILD)/cuda/%: dev/bench/%.cu $(BUILD)/flags.cuda
	$(build_cuda)

$(BUILD)/emu/emu_%: emu_%.cu $(BUILD)/emu.ready
	$(build_emu)

$(BUILD)/emu/%: %.cu $(ORACLE) $(BUILD)/emu.ready
	$(build_emu)

$(BUILD)/emu/%: dev/bench/%.cu $(BUILD)/emu.ready
	$(build_emu)

# emucc builds what it links into every program at its first run: here, so that it need not in several at once.
$(BUILD)/emu.ready: $(wildcard dev/emu/*.cpp dev/emu/*.h dev/emu/include/*.h) dev/emu/emucc $(BUILD)/flags.emu
	echo >$(BUILD)/empty.cu
	$(COMPILE_EMU) -c $(BUILD)/empty.cu -o $(BUILD)/empty.o
	@touch $@

# The CPU trainer's layers, which the GPU tests compare with: they take long to compile, so that one object serves every
# BUILD, PRECISION and SANITIZE.
$(PREFIX)test_gpt2cu $(PREFIX)test_gpt2emu: $(ORACLE)
$(ORACLE): dev/test/layers/oracle.c build/flags.oracle
	$(COMPILE_ORACLE) -MMD -MP -MT $@ -MF $@.d -c -o $@.$$$$ $< && mv $@.$$$$ $@

# The processes that it starts find each other through MPI, too.
$(BUILD)/test_comm: COMPILE += $(MPI_FLAGS)
$(BUILD)/test_comm: LIBS += $(MPI_LIBS) $(MPI_RPATH)
$(BUILD)/test_comm: $(BUILD)/flags.mpi

$(BUILD)/test_comm: test_comm.c $(BUILD)/flags
	@rm -f $@
	$(COMPILE_TEST) $(DEPENDS) -o $@ $< $(LIBS)

$(BUILD)/unit/test_%.o: test_%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(COMPILE_TEST) $(DEPENDS) -c -o $@ $<

# $(call link_units,NAMES): the program of some suites.
link_units = $(COMPILE_TEST) '-DSUITES=$(foreach name,$(1),X($(name)))' $(DEPENDS) -o $@ dev/test/unit_tests.c \
               $(1:%=$(BUILD)/unit/test_%.o) $(LIBS)

$(BUILD)/unit_tests: dev/test/unit_tests.c $(UNITS:%=$(BUILD)/unit/test_%.o)
	@rm -f $@
	$(call link_units,$(UNITS))

$(UNITS:%=$(BUILD)/test_%): $(BUILD)/test_%: dev/test/unit_tests.c $(BUILD)/unit/test_%.o
	@rm -f $@
	$(call link_units,$*)

$(BUILD)/fuzz_main.o: dev/test/fuzz_main.c $(BUILD)/flags
	$(COMPILE_TEST) $(DEPENDS) -c -o $@ $<

$(BUILD)/fuzz_%: fuzz_%.c $(BUILD)/fuzz_main.o $(BUILD)/flags
	@rm -f $@
	$(COMPILE_TEST) $(DEPENDS) -o $@ $< $(BUILD)/fuzz_main.o $(LIBS)

$(BUILD)/libfuzzer_%: fuzz_%.c $(BUILD)/flags
	@rm -f $@
	$(COMPILE) -fsanitize=fuzzer $(DEPENDS) -o $@ $< $(LIBS)

$(BUILD)/bench_cpu: dev/bench/bench_cpu.c $(BUILD)/flags
	@rm -f $@
	$(COMPILE) $(DEPENDS) -o $@ $< $(LIBS) -ldl

-include $(sort $(wildcard $(BUILD)/*.d $(ORACLE).d))

tests: $(TESTS) ## the unit tests, built into build/

fuzzers: $(FUZZERS)

PYTEST = python3 -m pytest --builds $(BUILD) dev/test
test: all tests ## build and run the tests that need no emulator (scripts/test.sh does much more)
	$(PYTEST) --ignore-glob='*/test_gpu_*.py' --ignore-glob='*.cuh' --ignore-glob='*/dev/test/emu/*'

EMU_PROGRAMS = test_kernels emu_cublaslt emu_numbers
test-emu: $(EMU_PROGRAMS:%=$(BUILD)/emu/%) $(addprefix $(PREFIX),train_gpt2 train_gpt2emu test_gpt2emu)
test-emu: ## build and run the tests of the emulator, and of the GPU trainer in it
	$(PYTEST) -k 'gpu or kernels or emu or pytorch'

bench-cpu: all $(BUILD)/bench_cpu ## measure the FMA peak, the matrix multiply and the training step of this machine
	$(BUILD)/bench_cpu

bench-gpu: $(BUILD)/cuda/bench_gpu ## measure each kernel of the GPU trainer against what the hardware can do
	$(BUILD)/cuda/bench_gpu

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
	dev/test/programs/test_headers.sh

doctor: ## what this machine has (compilers, OpenMP, CUDA, ...), what each is for, how to get it
	@dev/doctor.sh

clean: ## remove what was built; run folders stay
	rm -rf build $(PROGRAMS) $(GPU_PROGRAMS)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile
	@echo; sed -n 's/^#   make/  make/p' Makefile
