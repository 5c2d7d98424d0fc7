#!/usr/bin/env bash
# Runs the Spin model: with all guards under all faults, with each guard taken out, and for liveness. Prints a table, and fails when a row
# does not come out as it must. Needs spin and gcc. Usage: spec/run.sh [--full] (more pages; three attempts are the Go model's to explore)
set -uo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
guards="GATE PIN FENCE MAC COUNT VERDICT TAG ZERO"
faults="SHORT TORN REJECT CRASH LOST"
failed=0

# row NAME WANT(holds|breaks|no rest) DEFINE...
row() {
  local name=$1 want=$2; shift 2
  local d="$work/run" flags=() live=
  rm -rf "$d"; mkdir "$d"
  for x in "$@" VERDICTS; do flags+=("-D$x"); [ "$x" = LIVE ] && live=1; done
  local began=$EPOCHREALTIME
  (cd "$d" && spin "${flags[@]}" -a "$OLDPWD/handoff.pml" >spin.out 2>&1) || { echo "spin: $name"; cat "$d/spin.out"; failed=1; return; }
  local cc=(-O2 -w -DMEMLIM=6000 -DCOLLAPSE -DVECTORSZ=2048) run=(-m200000 -w22)
  if [ -n "$live" ]; then cc+=(-DNFAIR=3); run+=(-a -f); else cc+=(-DSAFETY); fi
  (cd "$d" && gcc "${cc[@]}" -o pan pan.c 2>gcc.out && ./pan "${run[@]}" >pan.out 2>&1)
  local errors states came
  errors=$(grep -o 'errors: [0-9]*' "$d/pan.out" | awk '{print $2}')
  states=$(grep -m1 'states, stored' "$d/pan.out" | awk '{print $1}')
  case "$errors:$live" in
    0:*) came=holds ;;
    *:1) came="no rest" ;;
    *) came=breaks ;;
  esac
  grep -q 'max search depth too small' "$d/pan.out" && came="too deep"
  local why; why=$(grep -m1 'pan:1' "$d/pan.out" | sed 's/pan:1: //; s/ (at depth.*//' | cut -c1-60)
  local mark=ok
  if [ "$came" != "$want" ]; then mark=WRONG; failed=1; fi
  printf '| %-42s | %-8s | %10s | %6.1f | %-60s | %s |\n' "$name" "$came" "${states:-?}" "$(echo "$EPOCHREALTIME - $began" | tr , . | bc)" "$why" "$mark"
}

without() { for g in $guards; do [ "$g" = "$1" ] || echo "$g"; done; }

printf '| %-42s | %-8s | %10s | %6s | %-60s | %s |\n' configuration result states s "what breaks" ""
echo '|---|---|---:|---:|---|---|'
# shellcheck disable=SC2086
{
  row "all guards, every fault" holds $guards $faults
  row "without the gate" breaks $(without GATE)
  row "without the pin" breaks $(without PIN)
  row "without the fence" breaks $(without FENCE)
  row "without the MAC, torn pages" breaks $(without MAC) TORN
  row "without the count, short prefill" breaks $(without COUNT) SHORT
  row "without the verdict, refusing prefill" breaks $(without VERDICT) REJECT
  row "without read-time tags, every fault" holds $(without TAG) $faults
  row "without zeroing, every fault" holds $(without ZERO) $faults
  row "liveness: all guards" holds $guards LIVE
  row "liveness: all guards, dying prefill, lost links" holds $guards CRASH LOST LIVE
  row "liveness: a refused copy keeps its pin" "no rest" $guards TORN FORGET LIVE
  if [ "${1:-}" = --full ]; then
    row "3 pages, every fault" holds $guards $faults NP=3
    row "4 pages, every fault" holds $guards $faults NP=4
  fi
}
exit $failed
