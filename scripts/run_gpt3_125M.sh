#!/usr/bin/env bash
# Reproduces GPT-3 125M (12 layers, 768 channels, context 2048) from 100 billion tokens of FineWeb, read three times.
#
#   scripts/run_gpt3_125M.sh                on all GPUs of this machine
#   SMOKE=1 scripts/run_gpt3_125M.sh        every stage in small, on the CPU, in two minutes
#
# Fetches the data, builds, trains, starts again after failures, exports for Hugging Face and draws the curves. Ctrl-C
# saves; the same command goes on. The environment overrides each setting (--help lists them), as in
#     OUT_DIR=/disk/run STEPS=1000 scripts/run_gpt3_125M.sh.
#
#   300.0 billion tokens: 572,204 steps of 524,288; 2.6e+20 FLOPs
#
#                        1 x A100 80 GB   8 x A100 80 GB   1 x H100 80 GB   8 x H100 80 GB
#   time                        21 days       62.6 hours           7 days       22.2 hours
#   sequences at once                32               32               32               32
#   memory of each             22.3 GiB         21.1 GiB         22.3 GiB         21.1 GiB
#
# Times are predicted kernel by kernel, none is measured, for so many sequences at once. --auto chooses how many it
# is by the free memory. Validation, HellaSwag and saving come on top.
#
# To expect: 33.7 % of HellaSwag, if FineWeb serves as well as the paper's data did (GPT-3 paper, table H.1, no examples
# given). Batch, rate, warm-up (375 million tokens), final rate and number of tokens are the paper's (table 2.1 and
# appendix B), but the rate falls until the end, and each token sees all before it in every layer. For the loss on
# FineWeb nothing was found that is published.
set -eu
NAME=gpt3_125M
TITLE="GPT-3 125M"
MODEL=${MODEL:-gpt3:c768}
SEQ_LEN=${SEQ_LEN:-2048}
TOTAL_BATCH=${TOTAL_BATCH:-524288}
STEPS=${STEPS:-572204}
LR=${LR:-6e-4}
WARMUP=${WARMUP:-715}
FINAL_LR_FRAC=${FINAL_LR_FRAC:-0.1}
DATA=${DATA:-fineweb100B}
KEEP_MAJOR=${KEEP_MAJOR:-50000}

OPENAI=
OPENAI_LOSS=
OPENAI_HELLASWAG=0.337
PUBLISHED_LOSS=
PUBLISHED_HELLASWAG=

# shellcheck source=scripts/reproduce.sh
. "$(dirname "${BASH_SOURCE[0]}")/reproduce.sh"
