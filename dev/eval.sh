#!/usr/bin/env bash
# Scores a model on public tasks with EleutherAI's lm-evaluation-harness, which fetches their data from the Hub.
#
#   dev/eval.sh MODEL [OPTION ...]    MODEL: a run's folder, a MODEL.bin, or a folder of dev/hf.py export
#   dev/eval.sh run --tasks arc_challenge --num_fewshot 25 --device cuda    all options are those of lm_eval
#
# The scores come as a table and as a file below MODEL_eval.
set -euo pipefail
tasks=hellaswag,lambada_openai,piqa,winogrande,arc_easy,arc_challenge,wikitext
stop() { echo "eval.sh: $*" >&2 && exit 1; }

[[ ${1:--} != -* ]] || stop "MODEL is missing: a run's folder, a .bin file, or a folder of hf.py export"
command -v lm_eval >/dev/null || stop 'lm_eval is not installed: pip install "lm_eval[hf]"'
folder=${1%/} out=${1%/}_eval
shift
[[ " $*" = *" --tasks"* || " $*" = *" -t "* ]] || set -- --tasks "$tasks" "$@"
if [ ! -e "$folder/config.json" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    python3 "$(dirname "$0")/hf.py" export "$folder" "$work/hf"
    folder=$work/hf
fi
lm_eval --model hf --model_args "pretrained=$folder" --output_path "$out" "$@"
