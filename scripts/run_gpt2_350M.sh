#!/usr/bin/env bash
# Reproduces GPT-2 350M (24 layers, 1024 channels) from the first 31 billion of FineWeb's 100 billion tokens.
#
#   scripts/run_gpt2_350M.sh                on all GPUs of this machine
#   SMOKE=1 scripts/run_gpt2_350M.sh        every stage in small, on the CPU, in two minutes
#
# Fetches the data, builds, trains, starts again after failures, exports for Hugging Face and draws the curves. Ctrl-C
# saves; the same command goes on. The environment overrides each setting (--help lists them), as in
#     OUT_DIR=/disk/run STEPS=1000 scripts/run_gpt2_350M.sh.
#
#   31.5 billion tokens: 60,000 steps of 524,288; 7.1e+19 FLOPs
#
#                        1 x A100 80 GB   8 x A100 80 GB   1 x H100 80 GB   8 x H100 80 GB
#   time                         5 days       14.9 hours       40.8 hours        5.1 hours
#   sequences at once                64               64               64               64
#   memory of each             56.4 GiB         52.9 GiB         56.4 GiB         52.9 GiB
#
# Times are predicted kernel by kernel, none is measured, for so many sequences at once. --auto chooses how many it
# is by the free memory. Validation, HellaSwag and saving come on top.
#
# To expect: for this recipe, which is llm.c's, no final loss or HellaSwag was found that is published. OpenAI's model
# has a loss of 3.0831 on the same validation data, and 37.5 % of HellaSwag (llm.c's figures).
set -eu
NAME=gpt2_350M
TITLE="GPT-2 350M"
MODEL=${MODEL:-d24}
SEQ_LEN=${SEQ_LEN:-1024}
TOTAL_BATCH=${TOTAL_BATCH:-524288}
STEPS=${STEPS:-60000}
LR=${LR:-3e-4}
WARMUP=${WARMUP:-700}
FINAL_LR_FRAC=${FINAL_LR_FRAC:-0}
DATA=${DATA:-fineweb100B}

OPENAI=350M
OPENAI_LOSS=3.0831
OPENAI_HELLASWAG=0.3752
PUBLISHED_LOSS=
PUBLISHED_HELLASWAG=

# shellcheck source=scripts/reproduce.sh
. "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh"
