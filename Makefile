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
#   make METER=1           emulated programs that can count what kernels do, with EMU_METER=1
#   make MPI=0             several GPUs start by TCP or a folder, not by mpirun; MPI=1, MPI_HOME=/folder likewise

PROGRAMS = train_gpt2 train_llama3 test_gpt2 tokenize
CUDA     = train_gpt2 train_llama3 test_gpt2 test_llama3# each .cu is two programs: with nvcc ..cu, with emucc ..emu
BIN      =#      where the programs go; empty: here
BUILD    = build# where tests, dependency files and the record of the flags go
PREFIX   = $(if $(BIN),$(BIN)/)

# --- targets: `make help` lists these and those of dev/test/tests.mk -------------------------------------------------
.PHONY: all headers doctor clean help
.DELETE_ON_ERROR:

all: $(addprefix $(PREFIX),train_gpt2 train_llama3 tokenize) ## the CPU trainers and the tokenizer (the default)

headers: ## every header alone as C11 or CUDA, and two objects that include them all
	python3 -m pytest -q dev/test/programs/test_compilers.py -k headers

doctor: ## what this machine has (compilers, OpenMP, CUDA, ...), what each is for, how to get it
	@dev/doctor.sh

clean: ## remove what was built; run folders stay
	rm -rf build $(PROGRAMS) $(CUDA:=cu) $(CUDA:=emu)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile dev/test/tests.mk
	@echo; sed -n 's/^#   make/  make/p' Makefile

# --- what is asked for: clean, help, doctor and book need no compiler; most machines have no nvcc --------------------
GOALS      := $(filter-out clean help doctor headers book,$(or $(MAKECMDGOALS),all))
CUDA_GOALS := $(filter %cu $(BUILD)/cuda/% bench-gpu,$(GOALS))
EMU_GOALS  := $(filter %emu $(BUILD)/emu% test-emu,$(GOALS))
MPI_GOALS  := $(CUDA_GOALS)$(EMU_GOALS)$(filter test tests $(BUILD)/test_comm,$(GOALS))

PRECISION = BF16
$(foreach name,SANITIZE NCCL CUDNN MPI,$(eval $(name) =))# those of the environment do not count
ifneq ($(filter-out 0 1,$(NCCL) $(CUDNN) $(MPI)),)
  $(error NCCL=$(NCCL) CUDNN=$(CUDNN) MPI=$(MPI): expected 0 (build without) or 1 (refuse to build without); \
    NCCL_HOME=/folder, CUDNN_HOME=/folder and MPI_HOME=/folder say where they are)
else ifeq ($(filter BF16 FP32,$(PRECISION)),)
  $(error PRECISION=$(PRECISION): expected BF16 or FP32)
else ifneq ($(findstring -ffast-math,$(CFLAGS))$(findstring -Ofast,$(CFLAGS))$(findstring -ffast-math,$(ARCH)),)
  $(error -ffast-math and -Ofast are refused: NaN checks and bit-for-bit results do not survive them)
else ifneq ($(if $(CUDA_GOALS),$(filter 1,$(SANITIZE))),)
  $(error SANITIZE=1 is for the CPU programs and the emulated ones (train_gpt2emu); a GPU has compute-sanitizer)
endif

# --- what is here ----------------------------------------------------------------------------------------------------
# gcc, else clang, else whatever cc is; and its C++ sibling (gcc-13: g++-13), for CUDA and for the emulator.
ifeq ($(origin CC),default)
  CC := $(firstword $(foreach name,gcc clang cc,$(if $(shell command -v $(name) 2>/dev/null),$(name))) cc)
endif
ifeq ($(origin CXX),default)
  CXX := $(or $(if $(findstring clang,$(CC)),$(subst clang,clang++,$(CC))), \
              $(if $(findstring gcc,$(CC)),$(subst gcc,g++,$(CC))),c++)
endif
CCACHE := $(shell command -v ccache 2>/dev/null)# keeps objects where it is installed; CCACHE= does without

# dev/find_libraries.sh prints words, NAME=value or NAME+=value, of what it finds.
$(foreach name,OPENMP_FLAGS OPENMP_LIBS CXX_OPENMP MPI_FLAGS MPI_LIBS CUDA_FLAGS CUDA_LIBS GPU_ARCHS,$(eval $(name) :=))
WANTED := $(if $(GOALS),$(if $(filter undefined,$(origin ARCH)),arch)) $(if $(CUDA_GOALS),cuda) \
          $(if $(filter 0,$(OPENMP)),,$(if $(GOALS),openmp) $(if $(CUDA_GOALS)$(EMU_GOALS),cxx_openmp)) \
          $(if $(filter 0,$(MPI)),,$(if $(MPI_GOALS),mpi))
TELL   := CC CXX OPENMP MPI MPI_HOME NVCC CUDA_HOME CUDA_PATH NCCL_HOME CUDNN_HOME NCCL CUDNN GPU_ARCH PRECISION
$(foreach word,$(shell $(foreach name,$(TELL),$(name)='$($(name))') QUIET=$(filter-out 0,$(MAKELEVEL)) \
    dev/find_libraries.sh $(WANTED) || echo FIND_FAILED=1),$(eval $(word)))
ifeq ($(FIND_FAILED),1)
  $(error dev/find_libraries.sh says above what is missing)
else ifeq ($(OPENMP_FLAGS)$(filter 0,$(OPENMP))$(MAKELEVEL)$(if $(GOALS),,none),0)
  $(info No OpenMP with $(CC): building for one thread; `make doctor` says how to get it. OPENMP=0 silences this)
endif
MPI_FOLDERS := $(patsubst -L%,%,$(filter -L%,$(MPI_LIBS)))# where programs find it again
MPI_RPATH   := $(MPI_FOLDERS:%=-Wl,-rpath,%)

# --- the flags -------------------------------------------------------------------------------------------------------
# Floating point: contraction into FMA and "math functions do not set errno" are the only liberties. -ffast-math would
# drop the NaN checks and reorder sums.
STRICT_FLAGS = -std=gnu11 -Wall -Wextra -ffp-contract=fast -fno-math-errno $(if $(filter 1,$(WERROR)),-Werror)
ifeq ($(SANITIZE),1)
  CFLAGS ?= -Og -g1
  STRICT_FLAGS += -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer -DGEMM_UNROLL=
endif
CFLAGS ?= -O3
COMPILE = $(CCACHE) $(CC) $(STRICT_FLAGS) $(CFLAGS) $(ARCH) $(or $(OPENMP_FLAGS),-Wno-unknown-pragmas) $(CPPFLAGS) -I.
LIBS    = $(LDFLAGS) $(OPENMP_LIBS) -pthread -lm $(LDLIBS)

PRECISION_FLAGS = $(if $(filter FP32,$(PRECISION)),-DPRECISION_FP32)
CXX_FLAGS = -Wall -Wextra $(if $(filter 1,$(WERROR)),-Werror) $(or $(CXX_OPENMP),-Wno-unknown-pragmas)
# Machine code for each GPU, and PTX, which the driver of a newer GPU translates.
GENCODE = $(foreach arch,$(GPU_ARCHS),-gencode arch=compute_$(arch),code=[sm_$(arch),compute_$(arch)]) \
          $(if $(word 2,$(GPU_ARCHS)),--threads 0)
# clang takes the unused functions of CUDA's own headers for ours.
NVCC_CXX_FLAGS = $(addprefix -Xcompiler ,$(CXX_FLAGS) $(if $(findstring clang,$(CXX)),-Wno-unused-function)) \
                 $(if $(filter 1,$(WERROR)),-Werror all-warnings)
# -Og is for the host's code, which does little (-O1 compiles 1.5 times as long). Device code is always optimised.
# -lineinfo lets compute-sanitizer and the profilers name lines, and costs nothing at run time. From CUDA 13 on, eight
# threads compile kernels; 12.4's own compiler complains of the option. The number is fixed, because it stands in the
# program file, and all ranks must run equal files.
EIGHT_THREADS = $(if $(filter-out 12.%,$(CUDA_RELEASE)),-split-compile=8 -Xptxas --split-compile=8)
NVCCFLAGS    ?= -Xcompiler -Og -lineinfo $(EIGHT_THREADS)
COMPILE_CUDA  = $(NVCC) -ccbin $(CXX) -std=c++17 $(NVCCFLAGS) $(GENCODE) $(NVCC_CXX_FLAGS) $(PRECISION_FLAGS) \
                $(CUDA_FLAGS) $(MPI_FLAGS) $(CPPFLAGS) -I.
CUDA_LIBS += $(MPI_LIBS) -lpthread -ldl $(foreach folder,$(MPI_FOLDERS),-Xlinker -rpath -Xlinker $(folder))

# -g1, because reports name lines. -O1: -O2 compiles three times as long. The emulator's own objects serve every BUILD.
EMU_CFLAGS  = -g1 $(if $(filter-out file,$(origin CFLAGS)),$(CFLAGS),-O1) $(if $(filter 1,$(SANITIZE)),--sanitize) \
              $(if $(filter 1,$(METER)),--meter) $(ARCH)
COMPILE_EMU = CCACHE=$(CCACHE) CXX=$(CXX) dev/emu/emucc --build build/emu $(EMU_CFLAGS) $(CXX_FLAGS) \
              $(PRECISION_FLAGS) $(if $(filter 0,$(NCCL)),,-DUSE_NCCL) $(if $(filter 0,$(CUDNN)),,-DUSE_CUDNN) \
              $(MPI_FLAGS) $(CPPFLAGS) -I.
EMU_LIBS    = $(MPI_LIBS) $(MPI_RPATH) -ldl

# $(call record,NAME,COMMAND): writes down a command line, if it has changed. Its programs depend on the file.
record = $(shell mkdir -p $(BUILD) && cd $(BUILD) && echo '$(2)' > $(1).$$$$ && \
           if cmp -s $(1).$$$$ $(1); then rm $(1).$$$$; else mv $(1).$$$$ $(1); fi)
# The revision for run.jsonl is a source file, so that a commit compiles only this file. Without .git it is empty.
REVISION := $(shell GIT_OPTIONAL_LOCKS=0 git --git-dir=.git describe --always --abbrev=40 --exclude='*' --dirty \
              2>/dev/null)
RECORD := $(if $(GOALS),$(call record,flags,$(COMPILE) $(LIBS)) \
                        $(call record,revision.c,const char *gpt2c_revision(void) { return "$(REVISION)"; })) \
          $(if $(MPI_GOALS),$(call record,flags.mpi,$(MPI_FLAGS) $(MPI_LIBS))) \
          $(if $(CUDA_GOALS),$(call record,flags.cuda,$(CUDA_RELEASE) $(COMPILE_CUDA) $(CUDA_LIBS))) \
          $(if $(EMU_GOALS),$(call record,flags.emu,$(COMPILE_EMU) $(EMU_LIBS)))
DEPENDS = -MMD -MP -MT $@ -MF $(BUILD)/$(subst /,_,$@).d

# --- programs --------------------------------------------------------------------------------------------------------
# A program is one source file and headers, and the revision. A recipe removes the old program first, so that a failed
# build leaves none, and a running program is not written over.
$(BUILD)/revision.o: $(BUILD)/revision.c
	$(CC) -c -o $@ $<

$(PROGRAMS:%=$(BUILD)/%.o): $(BUILD)/%.o: %.c $(BUILD)/flags
	@rm -f $@ $(PREFIX)$*
	$(COMPILE) $(DEPENDS) -c -o $@ $<

$(PROGRAMS:%=$(PREFIX)%): $(PREFIX)%: $(BUILD)/%.o $(BUILD)/revision.o
	@mkdir -p $(@D) && rm -f $@
	$(COMPILE) -o $@ $(filter %.o,$^) $(LIBS)

# Without -objtemp the program has the random name of a temporary file in it, and no two builds are equal.
$(CUDA:%=$(BUILD)/%cu.o): $(BUILD)/%cu.o: %.cu $(BUILD)/flags.cuda
	@rm -f $@ $(PREFIX)$*cu
	$(COMPILE_CUDA) -objtemp $(DEPENDS) -c -o $@ $<

$(CUDA:%=$(BUILD)/%emu.o): $(BUILD)/%emu.o: %.cu $(BUILD)/emu.ready
	@rm -f $@ $(PREFIX)$*emu
	$(COMPILE_EMU) -D'PROGRAM_NAME="$(subst test,train,$*)emu"' $(DEPENDS) -c -o $@ $<

$(CUDA:%=$(PREFIX)%cu): $(PREFIX)%cu: $(BUILD)/%cu.o $(BUILD)/revision.o
	@mkdir -p $(@D) && rm -f $@
	$(COMPILE_CUDA) -o $@ $(filter %.o,$^) $(CUDA_LIBS)

# With QUICK=1 the trainers are linked of the objects of their tests (tests.mk).
$(CUDA:%=$(PREFIX)%emu): $(PREFIX)%emu: $(BUILD)/revision.o $(if $(QUICK:0=),,$(BUILD)/%emu.o)
	@mkdir -p $(@D) && rm -f $@
	$(COMPILE_EMU) -o $@ $(filter %.o,$^) $(EMU_LIBS)

# emucc builds what it links into every program at its first run: here, so that it need not in several at once.
$(BUILD)/emu.ready: $(wildcard dev/emu/*.cpp dev/emu/*.h dev/emu/include/*.h) dev/emu/emucc $(BUILD)/flags.emu
	echo >$(BUILD)/empty.cu
	$(COMPILE_EMU) -c $(BUILD)/empty.cu -o $(BUILD)/empty.o
	@touch $@

include dev/test/tests.mk
-include $(sort $(wildcard $(BUILD)/*.d))
