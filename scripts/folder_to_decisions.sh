#!/usr/bin/env bash
# Runs every step from a damaged folder of photos to decisions, without manual work:
#
#     PYTHON=.venv/bin/python scripts/folder_to_decisions.sh [DIR]
#
# Everything is written to DIR, which must not exist; the default is a new temporary folder. MINUTES=2 is the time of the
# first training; the second takes half of it. The script takes less than ten minutes on two CPU cores.
set -euo pipefail

PYTHON=${PYTHON:-python3}
MINUTES=${MINUTES:-2}
here=$(cd "$(dirname "$0")" && pwd)
dir=${1:-$(mktemp -d)/folder-to-decisions}
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}

step() {
    printf '\n\033[1m$ npmatch %s\033[0m\n' "$*"
    "$PYTHON" -m npmatch "$@"
}

# Accepts exit code 1, with which a command reports skipped files: this folder contains unreadable ones.
step_with_skipped_files() {
    step "$@" || test $? -eq 1
}

started=$SECONDS
mkdir -p "$dir"
"$PYTHON" "$here/make_messy_folder.py" "$dir/photos"
step check-data "$dir/photos"
step train --data "$dir/photos" --out "$dir/run" --minutes "$MINUTES"
step evaluate "$dir/run"
step suggest "$dir/run" -n 20 -o "$dir/suggestions.csv"
# A person would now look at the suggested images and label them; here the true labels are known.
"$PYTHON" - "$dir" <<'FILL'
import csv, sys
folder = sys.argv[1]
with open(f"{folder}/truth.csv", newline="", encoding="utf-8") as file:
    truth = {row["path"]: row["label"] for row in csv.DictReader(file)}
with open(f"{folder}/suggestions.csv", newline="", encoding="utf-8") as file:
    suggested = [row["path"] for row in csv.DictReader(file)]
with open(f"{folder}/labels.csv", "w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([("path", "label"), *((path, truth[path]) for path in suggested)])
FILL
step label "$dir/run" "$dir/labels.csv"
step train --resume-from "$dir/run" --out "$dir/run2" --minutes "$("$PYTHON" -c "print($MINUTES / 2)")"
step evaluate "$dir/run2"
step calibrate "$dir/run2" --labeled "$dir/held-out"
step_with_skipped_files predict "$dir/run2" "$dir/photos/unlabeled" -o "$dir/decisions.csv" --abstain 0.05 --ood --top-k 3
step export "$dir/run2" --format onnx
printf '\n%s: from a damaged folder to decisions in %d s\n' "$dir" $((SECONDS - started))
